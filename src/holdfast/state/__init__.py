"""What follows from a journal: the writer's fold, the index that reading commands use, status, catalogue and profile.

Everything here is derived and can be deleted: `dispatch` routes records by type, `fold`, `story` and `profile` compute
from them, `index` and `catalogue` keep the result in the user's cache (`cache`, `snapshot`).
"""

from holdfast.state.cache import (
    DOWNLOADS,
    FOLDER_VARIABLE,
    IDENTITY,
    IN_USE,
    TEMPORARY_SUFFIX,
    Identity,
    cache_folder,
    entry_path,
    hold_copy,
    identify,
    is_networked,
    kind_folder,
    make_room,
    mark_used,
    remove_stale,
)
from holdfast.state.catalogue import Catalogue, stamp_of
from holdfast.state.dispatch import RecordHandlers
from holdfast.state.evidence import example_value, recorded_answer, recorded_edits, recorded_scores
from holdfast.state.fold import Bits, Fold, Judged, Trail, looked_data, step_gist
from holdfast.state.fold_snapshot import FoldSnapshot
from holdfast.state.index import Index, PlannedPage, ScoredPage
from holdfast.state.index_pages import Life, RunTotals
from holdfast.state.profile import ModelTimes, Profile
from holdfast.state.rows import AnswerRow, EvaluationCounts, MadeRow, ScoreRow
from holdfast.state.snapshot import (
    CheckedFiles,
    Stamps,
    are_unchanged,
    have_changed,
    identity_in,
    is_current,
    stamp_of_file,
    stamp_segments,
)
from holdfast.state.status import Standing, is_held, keep_beat, standing_by, standing_of, status_by, status_of
from holdfast.state.story import BEGINNINGS, ENDS, OpenJob, Story, role_prices
from holdfast.state.totals import (
    LONG,
    ReducedTotals,
    Reducing,
    RelatedSamples,
    ScorerTotals,
    Tally,
    mean_by_sample,
    repeated,
    score_totals,
    stored_reducing,
    stored_repeats,
)

__all__ = [
    "BEGINNINGS",
    "DOWNLOADS",
    "ENDS",
    "FOLDER_VARIABLE",
    "IDENTITY",
    "IN_USE",
    "LONG",
    "TEMPORARY_SUFFIX",
    "AnswerRow",
    "Bits",
    "Catalogue",
    "CheckedFiles",
    "EvaluationCounts",
    "Fold",
    "FoldSnapshot",
    "Identity",
    "Index",
    "Judged",
    "Life",
    "MadeRow",
    "ModelTimes",
    "OpenJob",
    "PlannedPage",
    "Profile",
    "RecordHandlers",
    "ReducedTotals",
    "Reducing",
    "RelatedSamples",
    "RunTotals",
    "ScoreRow",
    "ScoredPage",
    "ScorerTotals",
    "Stamps",
    "Standing",
    "Story",
    "Tally",
    "Trail",
    "are_unchanged",
    "cache_folder",
    "entry_path",
    "example_value",
    "have_changed",
    "hold_copy",
    "identify",
    "identity_in",
    "is_current",
    "is_held",
    "is_networked",
    "keep_beat",
    "kind_folder",
    "looked_data",
    "make_room",
    "mark_used",
    "mean_by_sample",
    "recorded_answer",
    "recorded_edits",
    "recorded_scores",
    "remove_stale",
    "repeated",
    "role_prices",
    "score_totals",
    "stamp_of",
    "stamp_of_file",
    "stamp_segments",
    "standing_by",
    "standing_of",
    "status_by",
    "status_of",
    "step_gist",
    "stored_reducing",
    "stored_repeats",
]
