"""Fold and index agree on every prefix of any journal, and an index that caught up says the same as a new one."""

import os
import shutil
import tempfile

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.journal import Reader, journal_folder
from holdfast.records import Draft
from holdfast.state import Fold, Index
from tests.caches import index_file
from tests.unit.state.stories import (
    EVALUATION,
    ended,
    failed,
    finished,
    fold_of,
    new_run,
    resumed,
    score,
    scoring,
    started,
    step,
    write,
)

KEYS = 3
ordinals = st.integers(0, KEYS - 1)
numbers = st.integers(2, 20)
records = st.one_of(
    st.builds(step, ordinals, st.integers(1, 3)),
    st.builds(finished, ordinals, st.sampled_from(["a", "b"]), st.integers(1, 3), st.integers(0, 1)),
    st.builds(failed, ordinals, st.integers(1, 4), st.booleans()),
    st.builds(score, ordinals, numbers, st.sampled_from([True, 0.5, None]), st.sampled_from(["x", "y"])),
    st.builds(scoring, st.sampled_from([EVALUATION, "evaluation-2"])),
    st.builds(resumed, st.sampled_from([None, {"seed": 2}])),
    st.builds(ended, st.sampled_from(["completed", "interrupted", "failed", "cancelled"])),
)


def check_agreement(fold: Fold, index: Index) -> None:
    assert (index.finished, index.failed, index.unfinished) == (fold.finished.count, fold.failed.count, fold.unfinished)
    assert fold.finished.count + fold.failed.count + fold.unfinished == fold.planned
    statuses = {row.o: row.status for row in index.answers()}
    for ordinal in range(KEYS):
        status = "finished" if ordinal in fold.finished else "failed" if ordinal in fold.failed else "unfinished"
        assert statuses.get(ordinal, "unfinished") == status
    assert index.story == fold.story


@given(st.lists(st.lists(records, max_size=5), min_size=1, max_size=4))
@settings(max_examples=25, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
def test_fold_and_index_agree_whenever_one_looks(sessions: list[list[Draft]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = new_run(folder, [started(KEYS)])
        for session in sessions:
            write(run, session)
            caught_up = Index(run)
            check_agreement(fold_of(run), caught_up)
            shown = list(caught_up.answers()), list(caught_up.scores(EVALUATION))
            caught_up.close()
            os.replace(index_file(run), os.path.join(folder, "kept.db"))
            anew = Index(run)
            assert (list(anew.answers()), list(anew.scores(EVALUATION))) == shown
            anew.close()
            os.replace(os.path.join(folder, "kept.db"), index_file(run))


@given(st.lists(records, min_size=1, max_size=8), st.data())
@settings(max_examples=25, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
def test_fold_and_index_agree_on_a_journal_cut_at_any_byte(written: list[Draft], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = new_run(folder, [started(KEYS), *written])
        path = os.path.join(journal_folder(run), "000001.jsonl")
        with open(path, "rb") as file:
            content = file.read()
        cut = data.draw(st.integers(content.index(b"\n") + 1, len(content)), label="bytes left")
        with open(path, "wb") as file:
            file.write(content[:cut])
        index = Index(run)
        fold = Fold().read(Reader(journal_folder(run)).read(live=True))
        check_agreement(fold, index)
        index.close()
        write(run, [step(0)])  # the torn end is put away, and both go on
        index = Index(run)
        check_agreement(fold_of(run), index)
        index.close()
        shutil.rmtree(run)
