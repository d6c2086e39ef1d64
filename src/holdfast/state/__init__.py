"""Where runs stand: folds over journals, and the derived index that reading commands use."""

from holdfast.state.folding import Fold, Trail
from holdfast.state.index import AnswerRow, Index, ScoreRow
from holdfast.state.status import is_held, status_of
from holdfast.state.story import Story

__all__ = ["AnswerRow", "Fold", "Index", "ScoreRow", "Story", "Trail", "is_held", "status_of"]
