"""Which runs may go, against a simple model of the policy; and removing them so that nothing half is left."""

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from hypothesis import given as given_values
from hypothesis import settings
from hypothesis import strategies as st

from holdfast.cli.commands.control import tag_run
from holdfast.errors import HeldError, HoldfastError, UsageError
from holdfast.runs import RunLocation, RunSummary
from holdfast.runs.maintenance.retention import REMOVABLE, RemovalCandidate, RetentionPolicy, chosen, named, remove
from holdfast.runs.summary import WaitingJob
from tests.unit.engine.runs import Asked, given, go, rows
from tests.unit.runs.stores import (
    completed,
    findings,
    fixed_findings,
    held,
    interrupted,
    listed,
    of_newer_format,
    stopped,
    with_failures,
)

DAY = 86400.0
NOW = 1_800_000_000.0


class Made(NamedTuple):
    """A run as the policy sees it."""

    experiment: str
    run_id: str
    age_days: float
    bytes: int
    status: str = "completed"
    tags: tuple[str, ...] = ()
    idle_days: float = 0.0
    """Since its last record."""


def time_before(days: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000000Z", time.gmtime(NOW - days * DAY))


def summary_of(made: Made) -> RunSummary:
    created, updated = time_before(made.age_days), time_before(min(made.idle_days, made.age_days))
    return RunSummary(
        made.run_id,
        made.experiment,
        made.status,
        created=created,
        updated=updated,
        bytes=made.bytes,
        tags=list(made.tags),
    )


@contextlib.contextmanager
def store_of(runs: list[Made]) -> Iterator[str]:
    """Folders of the right size, and what a look at each would say."""
    told = {(each.experiment, each.run_id): summary_of(each) for each in runs}

    class Look:
        def __init__(self, place: RunLocation) -> None:
            self._place = place

        def __enter__(self) -> "Look":
            return self

        def __exit__(self, *_: object) -> None: ...

        def summary(self) -> RunSummary:
            return told[self._place.experiment, self._place.run_id]

    with tempfile.TemporaryDirectory() as store, pytest.MonkeyPatch.context() as patch:
        for each in runs:
            journal = Path(store, each.experiment, each.run_id, "journal")
            journal.mkdir(parents=True)
            with open(journal / "000001.jsonl", "wb") as file:
                file.truncate(each.bytes)
        patch.setattr("holdfast.runs.maintenance.retention.Run", Look)
        yield store


def test_each_run_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Measuring walks every file of a run: on a networked store that is what a look costs."""
    for run_id in ("a", "b", "c"):
        completed(tmp_path, run_id)
    measured: list[str] = []
    size = RunLocation.size

    def counted(place: RunLocation) -> int:
        measured.append(place.run_id)
        return size(place)

    monkeypatch.setattr(RunLocation, "size", counted)
    doomed = chosen(str(tmp_path), [RetentionPolicy(max_bytes=0)])
    assert sorted(measured) == ["a", "b", "c"]
    assert [each.bytes for each in doomed] == [size(each.place) for each in doomed]


def names(doomed: list[RemovalCandidate]) -> list[str]:
    return [f"{each.place.experiment}/{each.place.run_id}" for each in doomed]


def model_of(runs: list[Made], policies: list[RetentionPolicy]) -> set[str]:
    """The rules as a person would apply them with a list and a pencil: those about size last."""
    going: set[Made] = set()
    for policy in policies:
        going |= by_age_and_count(runs, policy)
    for policy in policies:
        mine, may_go = scope_of(runs, policy)
        for each in may_go if policy.max_bytes is not None else ():
            if sum(other.bytes for other in mine if other not in going) <= (policy.max_bytes or 0):
                break
            going.add(each)
    return {f"{each.experiment}/{each.run_id}" for each in going}


def scope_of(runs: list[Made], policy: RetentionPolicy) -> tuple[list[Made], list[Made]]:
    """The runs that a rule is about, and those that it may remove, each with the oldest first."""
    mine = [each for each in runs if policy.experiment in (None, each.experiment)]
    oldest_first = sorted(mine, key=lambda each: (-each.age_days, each.experiment, each.run_id))
    newest: dict[str, list[Made]] = {}
    for each in reversed(oldest_first):
        newest.setdefault(each.experiment, []).append(each)

    def may_go(each: Made) -> bool:
        kept = policy.keep_latest and newest[each.experiment][0] == each
        return each.status in policy.statuses and not (policy.keep_tagged and each.tags) and not kept

    return oldest_first, list(filter(may_go, oldest_first))


def by_age_and_count(runs: list[Made], policy: RetentionPolicy) -> set[Made]:
    mine, may_go = scope_of(runs, policy)
    newest: dict[str, list[Made]] = {}
    for each in reversed(mine):
        newest.setdefault(each.experiment, []).append(each)
    going = set()
    for each in may_go:
        days = each.age_days if each.status == "completed" else min(each.idle_days, each.age_days)
        old = policy.older_than_days is not None and days > policy.older_than_days
        surplus = policy.keep is not None and each not in newest[each.experiment][: policy.keep]
        if old or surplus:
            going.add(each)
    return going


ages = st.integers(0, 60).map(float)
runs_of_a_store = st.lists(
    st.builds(
        Made,
        experiment=st.sampled_from(["a", "b", "c"]),
        run_id=st.integers(0, 99).map(lambda number: f"r{number:02}"),
        age_days=ages,
        bytes=st.integers(0, 50),
        status=st.sampled_from(["completed"] * 4 + ["running", "stalled", "interrupted", "failed", "cancelled"]),
        tags=st.sampled_from([(), (), ("keep",)]),
        idle_days=ages,
    ),
    max_size=12,
    unique_by=lambda each: (each.experiment, each.run_id),
)
policies = st.builds(
    RetentionPolicy,
    older_than_days=st.none() | st.integers(0, 60).map(lambda days: days + 0.5),
    keep=st.none() | st.integers(0, 4),
    max_bytes=st.none() | st.integers(0, 400),
    experiment=st.none() | st.sampled_from(["a", "b"]),
    keep_tagged=st.booleans(),
    keep_latest=st.booleans(),
    statuses=st.sampled_from([("completed",), REMOVABLE, ("interrupted", "failed")]).map(frozenset),
)


@settings(max_examples=80, deadline=None)
@given_values(runs_of_a_store, st.lists(policies, max_size=3))
def test_what_goes_is_what_a_simple_model_of_the_rules_says(runs: list[Made], rules: list[RetentionPolicy]) -> None:
    with store_of(runs) as store:
        doomed = chosen(store, rules, NOW)
    assert sorted(names(doomed)) == sorted(model_of(runs, rules))
    assert {each.rule for each in doomed} <= set(range(1, len(rules) + 1))
    assert [each.created for each in doomed] == sorted(each.created for each in doomed), "the oldest first"
    assert all(each.why for each in doomed)


@settings(max_examples=80, deadline=None)
@given_values(runs_of_a_store, st.integers(1, 5), st.booleans(), st.booleans())
def test_3_per_experiment_never_empties_an_experiment(
    runs: list[Made], keep: int, keep_latest: bool, keep_tagged: bool
) -> None:
    with store_of(runs) as store:
        going = names(
            chosen(store, [RetentionPolicy(keep=keep, keep_latest=keep_latest, keep_tagged=keep_tagged)], NOW)
        )
    for experiment in {each.experiment for each in runs}:
        mine = [each for each in runs if each.experiment == experiment]
        left = [each for each in mine if f"{experiment}/{each.run_id}" not in going]
        assert len(left) >= min(keep, len(mine))


def test_numbers_count_within_each_experiment_and_not_over_all() -> None:
    runs = [Made("busy", f"r{number}", number, 1) for number in range(6)] + [Made("quiet", "only", 50, 1)]
    with store_of(runs) as store:
        going = names(chosen(store, [RetentionPolicy(keep=3)], NOW))
    assert going == ["busy/r5", "busy/r4", "busy/r3"]


def test_a_rule_of_size_for_one_experiment_is_about_that_experiment() -> None:
    """ "Only in this experiment": what others take is not its fault."""
    runs = [Made("big", "x", 1, 1000), Made("small", "new", 1, 10), Made("small", "old", 2, 10)]
    with store_of(runs) as store:
        assert names(chosen(store, [RetentionPolicy(max_bytes=100, experiment="small")], NOW)) == []


def test_an_age_is_counted_to_the_moment() -> None:
    runs = [Made("a", "older", 30.001, 1), Made("a", "younger", 29.999, 1), Made("a", "newest", 1, 1)]
    with store_of(runs) as store:
        assert names(chosen(store, [RetentionPolicy(older_than_days=30)], NOW)) == ["a/older"]


def test_no_rule_names_nothing() -> None:
    with store_of([Made("a", "x", 1000, 1), Made("a", "y", 900, 1)]) as store:
        assert chosen(store, [RetentionPolicy()], NOW) == []


def test_only_completed_runs_go_by_a_rule(tmp_path: Path) -> None:
    completed(tmp_path, "done")
    with_failures(tmp_path, "hurt")
    interrupted(tmp_path, "cut")
    stopped(tmp_path, "cancelled", cancelled=True)
    stopped(tmp_path, "stopped")
    live = completed(tmp_path, "live")
    of_newer_format(completed(tmp_path, "newer"))
    with held(live):
        going = chosen(str(tmp_path), [RetentionPolicy(keep=0, older_than_days=0, max_bytes=0, keep_latest=False)])
    assert sorted(each.place.run_id for each in going) == ["done", "hurt"]


def test_runs_that_are_not_completed_go_only_by_a_rule_that_names_their_status(tmp_path: Path) -> None:
    completed(tmp_path, "done")
    interrupted(tmp_path, "cut")
    stopped(tmp_path, "cancelled", cancelled=True)
    live = interrupted(tmp_path, "live")
    with held(live):
        for status, left in (("interrupted", ["cut"]), ("cancelled", ["cancelled"]), ("failed", [])):
            policy = RetentionPolicy(keep=0, keep_latest=False, statuses=frozenset({status}))
            assert [each.place.run_id for each in chosen(str(tmp_path), [policy])] == left


def test_an_unfinished_run_is_as_old_as_its_last_record() -> None:
    """It was begun long ago, and somebody resumed it yesterday."""
    runs = [
        Made("a", "resumed", 90, 1, "interrupted", idle_days=1),
        Made("a", "abandoned", 90, 1, "interrupted", idle_days=60),
        Made("a", "newest", 1, 1),
    ]
    policy = RetentionPolicy(older_than_days=30, statuses=frozenset({"interrupted"}))
    with store_of(runs) as store:
        (doomed,) = chosen(store, [policy], NOW)
    assert (doomed.place.run_id, doomed.why) == ("abandoned", "interrupted, not written for 30 days")


def test_a_run_with_batch_jobs_at_a_server_is_never_selected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their results are paid for, and only this run can collect them."""
    job = WaitingJob("t", "batch-1", "models.local", 5, time_before(50))
    runs = [Made("a", "waiting", 60, 1, "interrupted", idle_days=50), Made("a", "other", 61, 1, "interrupted", (), 51)]
    policy = RetentionPolicy(keep=0, keep_latest=False, statuses=frozenset({"interrupted"}))
    usual = summary_of

    def with_job(made: Made) -> RunSummary:
        return msgspec.structs.replace(usual(made), jobs=[job] if made.run_id == "waiting" else [])

    monkeypatch.setitem(globals(), "summary_of", with_job)
    with store_of(runs) as store:
        assert names(chosen(store, [policy], NOW)) == ["a/other"]


def test_a_rule_of_size_counts_what_the_other_rules_leave() -> None:
    runs = [Made("a", f"r{age}", age, 10) for age in (1, 2, 3, 4, 5)]
    rules = [RetentionPolicy(max_bytes=30), RetentionPolicy(older_than_days=3.5)]
    with store_of(runs) as store:
        doomed = chosen(store, rules, NOW)
    assert [(each.place.run_id, each.rule) for each in doomed] == [("r5", 2), ("r4", 2)]


def test_a_run_that_is_named_goes_whatever_its_status_but_not_if_it_is_live(tmp_path: Path) -> None:
    place = interrupted(tmp_path)
    with held(place), pytest.raises(HeldError, match="live process"):
        named([place])
    for each in named([place]):
        remove(each)
    assert (os.path.exists(place.folder), listed(tmp_path)) == (False, {})


def test_a_run_that_is_named_twice_goes_once(tmp_path: Path) -> None:
    place = completed(tmp_path)
    doomed = named([place, place])
    assert len(doomed) == 1
    remove(doomed[0])
    assert listed(tmp_path) == {}


def test_a_run_that_begins_to_be_written_after_the_look_is_not_removed(tmp_path: Path) -> None:
    place = completed(tmp_path)
    (doomed,) = chosen(str(tmp_path), [RetentionPolicy(keep=0, keep_latest=False)])
    with held(place), pytest.raises(HeldError):
        remove(doomed)
    assert listed(tmp_path)["done"].status == "completed"


def test_a_run_that_has_changed_since_the_look_is_not_removed(tmp_path: Path) -> None:
    """Somebody has tagged it to be kept."""
    completed(tmp_path)
    (doomed,) = chosen(str(tmp_path), [RetentionPolicy(keep=0, keep_latest=False)])
    tag_run("done", ["keep"], str(tmp_path))
    with contextlib.suppress(HoldfastError):
        remove(doomed)
    assert list(listed(tmp_path)) == ["done"]


def test_removing_one_run_after_another_leaves_the_others_whole(tmp_path: Path) -> None:
    for number in range(4):
        completed(tmp_path, f"r{number}")
    for each in chosen(str(tmp_path), [RetentionPolicy(keep=2)]):
        remove(each)
    assert sorted(listed(tmp_path)) == ["r2", "r3"]
    assert findings(tmp_path) == []
    assert go(tmp_path, given([Asked(rows=rows(3))]), run_id="r3").finished == 3


def test_a_crash_half_way_leaves_no_half_run_and_the_rest_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    completed(tmp_path, "one")
    completed(tmp_path, "two")
    rmtree = shutil.rmtree

    def die(path: str, **_: Any) -> None:
        os.unlink(os.path.join(path, "spec.yaml"))
        raise KeyboardInterrupt

    (doomed,) = chosen(str(tmp_path), [RetentionPolicy(keep=1)])
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", die)
        with pytest.raises(KeyboardInterrupt):
            remove(doomed)
    assert shutil.rmtree is rmtree
    assert list(listed(tmp_path)) == ["two"]
    left = [path for path in (tmp_path / "tests").iterdir() if path.name.startswith(".gone-")]
    assert len(left) == 1
    assert [found.fixed for found in fixed_findings(tmp_path)] == [True]
    assert [path for path in left if path.exists()] == []
    assert findings(tmp_path) == []


def test_a_crash_before_the_renaming_leaves_the_run_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    completed(tmp_path)
    (doomed,) = chosen(str(tmp_path), [RetentionPolicy(keep=0, keep_latest=False)])

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", die)
        with pytest.raises(KeyboardInterrupt):
            remove(doomed)
    assert listed(tmp_path)["done"].status == "completed"
    assert go(tmp_path, given([Asked(rows=rows(3))]), run_id="done").finished == 3


def test_a_run_that_is_a_link_is_left_to_its_owner(tmp_path: Path) -> None:
    """Runs are moved to larger disks and linked to: what lies there may not be ours to remove."""
    place = completed(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    os.rename(place.folder, elsewhere)
    os.symlink(elsewhere, place.folder)
    (doomed,) = named([place])
    with pytest.raises(UsageError, match="is a link"):
        remove(doomed)
    assert os.listdir(tmp_path / "tests") == [os.path.basename(place.folder)]


def test_sizes_are_those_of_all_files(tmp_path: Path) -> None:
    place = completed(tmp_path)
    quarantine = Path(place.journal, "quarantine")
    quarantine.mkdir()
    (quarantine / "piece").write_bytes(bytes(12345))
    on_disk = sum(path.lstat().st_size for path in Path(place.folder).rglob("*") if path.is_file())
    assert place.size() == on_disk
    assert [each.bytes for each in named([place])] == [on_disk]
