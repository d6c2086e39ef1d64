"""What follows from a journal: the writer's fold, the index that reading commands use, status, catalogue and profile.

Everything here is derived and can be deleted: `dispatch` routes records by type, `fold`, `story` and `profile` compute
from them, `index` and `catalogue` keep the result in the user's cache (`cache`, `snapshot`).
"""

from holdfast.state.catalogue import Catalogue, stamp_of
from holdfast.state.fold import Bits, Fold, Judged, Trail
from holdfast.state.index import Index
from holdfast.state.profile import ModelTimes, Profile
from holdfast.state.rows import (
    AnswerRow,
    EvaluationCounts,
    MadeRow,
    ScoreRow,
    example_value,
    recorded_answer,
    recorded_edits,
    recorded_scores,
)
from holdfast.state.snapshot import Stamps, stamp_of_file
from holdfast.state.status import Standing, is_held, keep_beat, standing_by, standing_of, status_by, status_of
from holdfast.state.story import OpenJob, Story

__all__ = [
    "AnswerRow",
    "Bits",
    "Catalogue",
    "EvaluationCounts",
    "Fold",
    "Index",
    "Judged",
    "MadeRow",
    "ModelTimes",
    "OpenJob",
    "Profile",
    "ScoreRow",
    "Stamps",
    "Standing",
    "Story",
    "Trail",
    "example_value",
    "is_held",
    "keep_beat",
    "recorded_answer",
    "recorded_edits",
    "recorded_scores",
    "stamp_of",
    "stamp_of_file",
    "standing_by",
    "standing_of",
    "status_by",
    "status_of",
]
