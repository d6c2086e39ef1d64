"""One sample for its page: an outline of all steps, and the texts of a part of them.

A sample may have many thousands of steps. All of its records are read once, without texts, for totals, turns and the
timeline; the texts only of one window. The outline of a long sample is kept and extended, so that looking through its
windows and watching it live stay cheap.
"""

import contextlib
from bisect import bisect_left
from collections.abc import Sequence

import msgspec

from holdfast.journal import Entry, Position, Reader
from holdfast.report import KeyRecords, KeyStory, PlannedKey, collect, find_planned
from holdfast.view.sources import KeyOutline, NotFoundError, ViewedRun

WINDOW_STEPS = 50
_WINDOW_BYTES = 8_000_000
"""Of the records of one window: more texts than that are shown in several windows."""
_KEPT_STEPS = 300
"""From how many steps on an outline is kept."""


class StepWindow(msgspec.Struct, frozen=True):
    """Which steps of how many are shown, counted from 1. Steps of other windows are given by record number."""

    first: int = 0
    last: int = 0
    total: int = 0
    before: int | None = None
    after: int | None = None
    end: int | None = None
    """The last step of all, if another window has it."""


class Transcript(msgspec.Struct, frozen=True):
    """A sample with the texts of a part of its steps. `records`: without texts, but all."""

    story: KeyStory
    records: KeyRecords
    positions: list[Position]
    solving: StepWindow
    judging: StepWindow


def open_reader(run: ViewedRun) -> "contextlib.closing[Reader]":
    """For looking up single records."""
    return contextlib.closing(Reader(run.place.journal))


def find_key(run: ViewedRun, key: str) -> PlannedKey:
    """The place of a key in the plan. NotFoundError if it has none; DamagedError if the plan is damaged."""
    if run.damage:
        run.damage_report.require_originals()
    found = find_planned(run.place.folder, run.index.story.cells, key, run.ordinals.get(key))
    if found is None:
        raise NotFoundError(f"{run.run_id} has no sample {key!r}")
    return found


def load_transcript(run: ViewedRun, key: str, evaluation: str = "", step: int | None = None) -> Transcript:
    """The window with the step of this record number; the first one by default, the last one for a number behind it."""
    planned = find_key(run, key)
    positions = run.index.positions(planned.o)
    with open_reader(run) as reader:

        def read(position: Position) -> Entry | None:
            return reader.record_at(position.segment, position.offset)

        records = read_outline(run, key, positions, reader)
        solving = [at for at, (*_, each) in enumerate(records.steps) if each.scope.startswith("solve/")]
        judging = [at for at, (*_, each) in enumerate(records.steps) if not each.scope.startswith("solve/")]
        is_judge = step is not None and any(records.steps[at][0] == step for at in judging)
        shown, window = choose_window(records, solving, None if is_judge else step)
        judges, judge_window = choose_window(records, judging, step if is_judge else None)
        whole = records.with_texts([*shown, *judges], read)
        latest = None
        if run.is_live and not records.finished and window.end is not None:
            latest = records.with_texts([records.steps[at][0] for at in solving[-WINDOW_STEPS:]], read)
        story = run.story_of(planned, whole, evaluation, run.standing, latest)
    return Transcript(story, records, positions, window, judge_window)


def read_outline(run: ViewedRun, key: str, positions: list[Position], reader: Reader) -> KeyRecords:
    """All records of a key without the texts of its steps. Extends the outline that is kept, if it is of this key."""
    kept, run.outline = run.outline, None  # an error while it is extended must not leave half of it
    if kept is None or kept.key != key or positions[: len(kept.positions)] != kept.positions:
        kept = KeyOutline(key, [], KeyRecords(texts=False))
    fresh = positions[len(kept.positions) :]
    kept.records.lives = run.index.lives
    collect((reader.record_at(each.segment, each.offset) for each in fresh), key, kept.records)
    kept.positions = positions
    if len(positions) >= _KEPT_STEPS:
        run.outline = kept
    return kept.records


def choose_window(records: KeyRecords, among: Sequence[int], step: int | None) -> tuple[list[int], StepWindow]:
    """The record numbers of the steps to show. `among`: places in `records.steps`. Windows begin at fixed steps, so
    that an address always shows the same ones, and end early if their records are large.
    """
    if not among:
        return [], StepWindow()
    numbers = [records.steps[at][0] for at in among]
    chosen = 0 if step is None else min(bisect_left(numbers, step), len(numbers) - 1)
    first = chosen // WINDOW_STEPS * WINDOW_STEPS
    sizes = [records.places[at][1] for at in among[first : first + WINDOW_STEPS]]
    if sum(sizes[: chosen - first + 1]) > _WINDOW_BYTES:
        sizes, first = sizes[chosen - first :], chosen
    count, held = 1, sizes[0]
    while count < len(sizes) and held + sizes[count] <= _WINDOW_BYTES:
        held += sizes[count]
        count += 1
    last = first + count
    window = StepWindow(
        first=first + 1,
        last=last,
        total=len(numbers),
        before=numbers[max(first - WINDOW_STEPS, 0)] if first else None,
        after=numbers[last] if last < len(numbers) else None,
        end=numbers[-1] if last < len(numbers) else None,
    )
    return numbers[first:last], window
