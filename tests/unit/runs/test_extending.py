"""An extended run is the run that was planned so large from the start; what is no extension is refused."""

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given as drawn_from
from hypothesis import settings
from hypothesis import strategies as st

from holdfast.errors import DriftError, HoldfastError, JournalError, UsageError
from holdfast.journal import verify
from holdfast.plan.files import data_path, plan_path
from holdfast.records.samples import Answer, Sample
from holdfast.runs import Given, Run, extend, find_run, new_run_location
from holdfast.score import scorer
from holdfast.stats import wilson
from tests.oracle import check_reports
from tests.unit.engine.runs import RUN, Asked, cut_after, folder, given, go, model, records, rows
from tests.unit.runs.advice import Told, files, fork, grow, steps_of, summary, told_of


@scorer
def right(sample: Sample, answer: Answer) -> bool:
    return bool(answer.text == sample.target)


class Size(msgspec.Struct, frozen=True):
    """How large a run is meant to be. `tasks`: rows and repeats of each."""

    tasks: tuple[tuple[int, int], ...] = ((3, 1),)
    models: int = 1
    limit: int | None = None

    @property
    def keys(self) -> int:
        return sum(min(count, self.limit or count) * repeats for count, repeats in self.tasks) * self.models


def sized(size: Size, told: Told, **fields: Any) -> Given:
    tasks = [
        Asked(f"task{i}", rows(count), scorers=[right], fields={"repeats": repeats})
        for i, (count, repeats) in enumerate(size.tasks)
    ]
    models = [model(f"m{i}", told) for i in range(size.models)]
    return given(tasks, models, limit=size.limit, **fields)


GROWN = {
    "repeats": Size(((3, 3),)),
    "rows": Size(((5, 1),)),
    "model": Size(((3, 1),), models=2),
    "task": Size(((3, 1), (2, 2))),
    "all": Size(((4, 2), (2, 1)), models=3),
}


def check_whole(store: Path, size: Size, told: Told, **fields: Any) -> None:
    """The run equals one of that size, adds up, has one line for each task and model, and nothing was asked twice."""
    whole = store / "whole"
    if not whole.exists():
        go(whole, sized(size, Told(), **fields))
    assert told_of(store) == told_of(whole)
    found = summary(store)
    assert (found.status, found.planned, found.finished) == ("completed", size.keys, size.keys)
    assert len(told.asked) == size.keys
    assert steps_of(store) == (size.keys, 0, 0)
    with Run.find(str(store), RUN) as run:
        cells = [(cell.task, cell.model, cell.planned, cell.finished) for cell in run.cells()]
        wanted = [(task, name) for task in range(len(size.tasks)) for name in range(size.models)]
        assert sorted((task, name) for task, name, _, _ in cells) == [(f"task{t}", f"m{m}") for t, m in wanted]
        assert sum(planned for _, _, planned, _ in cells) == sum(done for _, _, _, done in cells) == size.keys
    assert verify(os.path.join(folder(store), "journal")).ok


@pytest.mark.parametrize("name", GROWN)
def test_an_extended_run_equals_one_that_was_planned_so_from_the_start(tmp_path: Path, name: str) -> None:
    told = Told()
    go(tmp_path, sized(Size(), told))
    ended = grow(tmp_path, sized(GROWN[name], told))
    assert (ended.finished, ended.failed, ended.unfinished) == (GROWN[name].keys, 0, 0)
    check_whole(tmp_path, GROWN[name], told)


def test_a_larger_limit_and_then_none_add_the_rows_beyond_it(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, sized(Size(((6, 2),), limit=2), told))
    grow(tmp_path, sized(Size(((6, 2),), limit=4), told))
    check_whole(tmp_path, Size(((6, 2),), limit=4), told)
    grow(tmp_path, sized(Size(((6, 2),)), told))
    assert summary(tmp_path).planned == 12
    assert len(told.asked) == 12


def test_samples_chosen_by_name_may_become_more_in_any_order(tmp_path: Path) -> None:
    told = Told()

    def wanted(*names: str) -> Given:
        return given([Asked(rows=rows(6), scorers=[right])], [model("m", told)], samples=list(names))

    go(tmp_path, wanted("s3"))
    grow(tmp_path, wanted("s3", "s1"))
    grow(tmp_path, wanted("s5", "s1", "s0", "s3"))
    assert told.asked == [f"question {i}" for i in (3, 1, 0, 5)]
    assert {key.split("/")[2] for key in told_of(tmp_path)} == {"s0", "s1", "s3", "s5"}
    assert {scores["right"] for _, _, scores in told_of(tmp_path).values()} == {True}


def test_rows_put_before_and_between_those_that_were_planned_are_added(tmp_path: Path) -> None:
    told = Told()
    every = rows(6)

    def wanted(*numbers: int) -> Given:
        return given([Asked(rows=[every[i] for i in numbers], scorers=[right])], [model("m", told)])

    go(tmp_path, wanted(1, 4))
    grow(tmp_path, wanted(0, 1, 3, 4))
    grow(tmp_path, wanted(0, 1, 2, 3, 4, 5))
    go(tmp_path / "whole", wanted(0, 1, 2, 3, 4, 5))
    assert told_of(tmp_path) == told_of(tmp_path / "whole")
    before = files(tmp_path)
    go(tmp_path, wanted(0, 1, 2, 3, 4, 5))
    assert files(tmp_path) == before


SIZES = st.builds(
    Size,
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=3).map(tuple),
    st.integers(1, 2),
    st.none() | st.integers(1, 4),
)


def joined(one: Size, other: Size) -> Size:
    """As large as both."""
    pairs = zip(
        [*one.tasks, *other.tasks[len(one.tasks) :]], [*other.tasks, *one.tasks[len(other.tasks) :]], strict=True
    )
    tasks = tuple((max(a, c), max(b, d)) for (a, b), (c, d) in pairs)
    limit = None if one.limit is None or other.limit is None else max(one.limit, other.limit)
    return Size(tasks, max(one.models, other.models), limit)


@settings(max_examples=6, deadline=None)
@drawn_from(sizes=st.lists(SIZES, min_size=2, max_size=4))
def test_however_a_run_grows_it_ends_as_if_planned_so(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[Size]
) -> None:
    store, told = tmp_path_factory.mktemp("grown"), Told()
    size = sizes[0]
    extended = False
    go(store, sized(size, told))
    for more in sizes[1:]:
        larger = joined(size, more)
        if larger.keys == size.keys:
            if extended:  # the same command again continues; other rows or another limit for the same keys may not
                before = len(told.asked)
                with contextlib.nullcontext() if larger == size else contextlib.suppress(UsageError):
                    grow(store, sized(larger, told))
                assert len(told.asked) == before
            else:
                with pytest.raises(UsageError, match="already"):
                    grow(store, sized(larger, told))
            continue
        size, extended = larger, True
        grow(store, sized(size, told))
    check_whole(store, size, told)
    before = len(told.asked)
    go(store, sized(size, told))
    assert len(told.asked) == before


def changed_row(wanted: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "input": "another"} if row["id"] == "s1" else row for row in wanted]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"tasks": {"repeats": 1}}, "repeats"),
        ({"rows": rows(2)}, "1 sample removed (s2)"),
        ({"rows": changed_row(rows(5))}, "1 sample changed (s1)"),
        ({"rows": rows(3)[::-1]}, "another order"),
        ({"tasks": {"prompt": "now: {input}"}}, "tasks.task.prompt"),
        ({"models": {"params": {"temperature": 1}}}, "models.m.params"),
        ({"limit": 2}, "limit"),
        ({"samples": ["s0", "s1"]}, "samples"),
        ({"seed": 3}, "seed"),
        ({"tasks": {"sample_retries": 7}}, "sample_retries"),
        ({"tasks": {"name": "other"}}, "task"),
        ({"models": {"name": "other"}}, "m"),
        ({"record_data": False}, "record_data"),
    ],
    ids=str,
)
def test_what_is_no_extension_is_refused_and_changes_nothing(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    told = Told()

    def wanted(**fields: Any) -> Given:
        task = {"repeats": 2, **fields.pop("tasks", {})}
        name = task.pop("name", "task")
        chosen = fields.pop("models", {})
        used = model(chosen.pop("name", "m"), told, **chosen)
        return given([Asked(name, fields.pop("rows", rows(3)), fields=task)], [used], **fields)

    go(tmp_path, wanted())
    before = files(tmp_path)
    more = {**changes, "tasks": {"repeats": 3, **changes.get("tasks", {})}}
    with pytest.raises(DriftError) as refusal:
        grow(tmp_path, wanted(**more))
    assert named in str(refusal.value)
    assert all(change.new != "" for change in refusal.value.changes if hasattr(change, "new")), "it says nothing"
    assert files(tmp_path) == before
    assert len(told.asked) == 6


def test_a_task_or_a_model_that_is_left_out_is_refused(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, sized(Size(((2, 1), (2, 1)), models=2), told))
    before = files(tmp_path)
    for less in (Size(((2, 3),), models=2), Size(((2, 3), (2, 3)), models=1)):
        with pytest.raises(DriftError):
            grow(tmp_path, sized(less, told))
    assert files(tmp_path) == before


def test_an_extension_by_nothing_is_a_mistake_of_usage(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, sized(Size(), told))
    before = files(tmp_path)
    with pytest.raises(UsageError, match="already"):
        grow(tmp_path, sized(Size(), told))
    assert files(tmp_path) == before


def test_a_run_that_has_not_begun_cannot_be_extended(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has not begun"):
        grow(tmp_path, sized(Size(), Told()))
    assert files(tmp_path) == {}


def test_after_an_extension_the_extended_spec_continues_and_the_old_one_is_refused(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, sized(Size(), told))
    grow(tmp_path, sized(GROWN["all"], told))
    asked, before = len(told.asked), files(tmp_path)
    go(tmp_path, sized(GROWN["all"], told))
    assert (len(told.asked), files(tmp_path)) == (asked, before)
    for old in (Size(), GROWN["repeats"], Size(((4, 2), (2, 1)), models=2)):
        with pytest.raises(DriftError):
            go(tmp_path, sized(old, told))
    with pytest.raises(DriftError):
        go(tmp_path, sized(Size(((5, 2), (2, 1)), models=3), told))
    assert files(tmp_path) == before


class KilledError(BaseException):
    """As if the process had been killed here."""


@pytest.mark.parametrize("name", GROWN)
def test_killed_between_the_block_and_its_record_the_run_is_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    import holdfast.runs.execution.resume as resuming

    told = Told()
    go(tmp_path, sized(Size(), told))
    wrote: list[bool] = []

    def die(*arguments: Any) -> None:
        wrote.append(os.path.exists(plan_path(folder(tmp_path), 2)) and os.path.exists(data_path(folder(tmp_path), 2)))
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(resuming, "RunExtended", die)
        with pytest.raises(KilledError):
            grow(tmp_path, sized(GROWN["task"], told))
    assert wrote == [True]
    assert summary(tmp_path).planned == 3
    go(tmp_path, sized(Size(), told))
    assert len(told.asked) == 3
    grow(tmp_path, sized(GROWN[name], told))
    check_whole(tmp_path, GROWN[name], told)


def test_killed_between_the_record_and_the_answers_a_plain_resume_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import holdfast.runs.execution.resume as resuming

    def die(*arguments: Any) -> None:
        raise KilledError

    told = Told()
    go(tmp_path, sized(Size(), told))
    with monkeypatch.context() as patch:
        patch.setattr(resuming, "write_spec_file", die)
        with pytest.raises(KilledError):
            grow(tmp_path, sized(GROWN["all"], told))
    found = summary(tmp_path)
    assert (found.status, found.planned, found.unfinished) == ("interrupted", GROWN["all"].keys, GROWN["all"].keys - 3)
    with pytest.raises(DriftError):
        go(tmp_path, sized(Size(), told))
    go(tmp_path, sized(GROWN["all"], told))
    check_whole(tmp_path, GROWN["all"], told)


def test_an_interrupted_run_can_be_extended_and_then_answers_both(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, sized(Size(), told))
    finished = iter(range(9))
    cut_after(tmp_path, lambda kind, data: kind != "sample.finished" or next(finished) < 1)
    told.asked.clear()
    grow(tmp_path, sized(GROWN["all"], told))
    found = summary(tmp_path)
    assert (found.status, found.finished) == ("completed", GROWN["all"].keys)
    assert steps_of(tmp_path)[0] == GROWN["all"].keys


def test_failed_samples_stay_counted_through_an_extension_and_are_tried_again_by_a_resume(tmp_path: Path) -> None:
    told = Told(lambda text: text == "question 1")
    wanted = [
        given([Asked(rows=rows(3), fields={"repeats": repeats, "sample_retries": 0})], [model("m", told)])
        for repeats in (1, 2)
    ]
    go(tmp_path, wanted[0])
    ended = grow(tmp_path, wanted[1])
    assert (ended.finished, ended.failed, ended.unfinished) == (4, 2, 0)
    assert (summary(tmp_path).finished, summary(tmp_path).failed) == (4, 2)
    told.fails = lambda text: False
    ended = go(tmp_path, wanted[1])
    assert (ended.finished, ended.failed) == (6, 0)


@pytest.mark.parametrize("path", [plan_path, data_path])
def test_damage_in_the_files_of_a_later_block_is_found_before_anything_is_asked(
    tmp_path: Path, path: Callable[[str, int], str]
) -> None:
    told = Told()
    go(tmp_path, sized(Size(), told))
    grow(tmp_path, sized(GROWN["rows"], told))
    file = Path(path(folder(tmp_path), 2))
    good = file.read_bytes()
    for bad in (good[: len(good) // 2], bytes([good[0]]) + bytes([good[20] ^ 255]) * (len(good) - 1), b"", None):
        file.unlink()
        if bad is not None:
            file.write_bytes(bad)
        with pytest.raises(JournalError, match=file.name):
            go(tmp_path, sized(GROWN["rows"], told))
        with pytest.raises(JournalError, match=file.name):
            grow(tmp_path, sized(GROWN["all"], told))
        file.unlink(missing_ok=True)
        file.write_bytes(good)
    go(tmp_path, sized(GROWN["rows"], told))
    assert len(told.asked) == 5


def write_rows(path: Path, count: int) -> Path:
    path.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows(count)))
    return path


@pytest.mark.parametrize("record_data", [True, False])
def test_rows_appended_to_the_data_file_are_added(tmp_path: Path, record_data: bool) -> None:
    told = Told()

    def wanted(count: int, repeats: int = 1) -> Given:
        path = write_rows(tmp_path / "rows.jsonl", count)
        fields = {"dataset": {"path": str(path)}, "repeats": repeats, "prompt": "{input}"}
        made = given([Asked(scorers=[right], fields=fields)], [model("m", told)], record_data=record_data)
        return msgspec.structs.replace(made, rows={})

    store = tmp_path / "store"
    go(store, wanted(2))
    grow(store, wanted(4))
    grow(store, wanted(4, repeats=2))
    grow(store, wanted(5, repeats=2))
    assert len(told.asked) == 10
    go(store / "whole", wanted(5, repeats=2))
    assert told_of(store) == told_of(store / "whole")
    assert {scores["right"] for _, _, scores in told_of(store).values()} == {True}
    again = wanted(5, repeats=2)
    before = files(store)
    go(store, again)
    assert files(store) == before


def test_two_tasks_with_the_same_ids_keep_their_own_rows(tmp_path: Path) -> None:
    """Also when the run records no data and finds each row in the user's own files."""
    told = Told()

    def wanted(count: int, record_data: bool) -> Given:
        tasks = [
            Asked(
                name, [{**row, "input": f"{name} {row['input']}"} for row in rows(count)], fields={"prompt": "{input}"}
            )
            for name in ("one", "two")
        ]
        return given(tasks, [model("m", told), model("n", told)], record_data=record_data)

    for record_data in (True, False):
        store = tmp_path / str(record_data)
        go(store, wanted(2, record_data))
        grow(store, wanted(4, record_data))
        found = told_of(store)
        assert len(found) == 16
        assert all(
            output == f"{key.split('/')[0]} question {key.split('/')[2][1:]}" for key, (_, output, _) in found.items()
        )


def test_of_two_equal_extensions_at_once_the_keys_are_added_once(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, sized(Size(), told))
    wanted = sized(GROWN["repeats"], told)

    async def both() -> tuple[Any, ...]:
        place = new_run_location(wanted, str(tmp_path), RUN)
        return await asyncio.gather(extend(wanted, place), extend(wanted, place), return_exceptions=True)

    refused = [each for each in asyncio.run(both()) if isinstance(each, BaseException)]
    assert all(isinstance(each, HoldfastError) for each in refused), refused
    assert [data["plan"]["count"] for kind, data in records(tmp_path) if kind == "run.extended"] == [6]
    check_whole(tmp_path, GROWN["repeats"], told)


def test_scorers_may_change_with_an_extension(tmp_path: Path) -> None:
    @scorer
    def wrong(sample: Sample, answer: Answer) -> bool:
        return False

    told = Told()
    go(tmp_path, sized(Size(), told))
    changed = given([Asked("task0", rows(4), scorers=[wrong])], [model("m0", told)])
    grow(tmp_path, changed)
    assert [scores for _, _, scores in told_of(tmp_path).values()] == [{"wrong": False}] * 4
    assert len(told.asked) == 4


def test_an_extended_run_can_be_forked_back_to_its_old_size(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, sized(Size(), told))
    grow(tmp_path, sized(GROWN["all"], told))
    asked = len(told.asked)
    forked = fork(tmp_path, sized(Size(), told))
    assert (forked.ended.finished, len(told.asked)) == (3, asked)


def test_repeats_that_an_extension_adds_are_in_the_groups_of_their_samples(tmp_path: Path) -> None:
    """They are in another block of the plan, so on other pages of the index."""
    told = Told()
    go(tmp_path, sized(Size(((8, 1),)), told))
    grow(tmp_path, sized(Size(((8, 3),)), told))
    place = find_run(str(tmp_path), RUN)
    with Run(place) as run:
        (cell,) = run.report().cells
    (scored,) = cell.scorers
    assert (cell.finished, scored.summary.n) == (24, 24)
    assert scored.summary.low == pytest.approx(wilson(8, 8).low)
    assert check_reports(place).differences == []
