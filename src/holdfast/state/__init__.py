"""Where runs stand: folds over journals, and the derived index that reading commands use."""

from holdfast.state.catalogue import Catalogue, stamp_of
from holdfast.state.folding import Fold, Judged, Trail
from holdfast.state.index import AnswerRow, Index, ScoreRow
from holdfast.state.status import Standing, is_held, keep_beat, standing_by, standing_of, status_by, status_of
from holdfast.state.story import Bill, OpenJob, Story

__all__ = [
    "AnswerRow",
    "Bill",
    "Catalogue",
    "Fold",
    "Index",
    "Judged",
    "OpenJob",
    "ScoreRow",
    "Standing",
    "Story",
    "Trail",
    "is_held",
    "keep_beat",
    "stamp_of",
    "standing_by",
    "standing_of",
    "status_by",
    "status_of",
]
