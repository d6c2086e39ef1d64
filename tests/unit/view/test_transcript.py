"""A sample in windows: together they are the whole sample, and each costs only its own texts."""

import contextlib
from collections.abc import Iterator

import pytest

import holdfast
from holdfast.journal import Position, Reader
from holdfast.report import KeyRecords, StepOutline, StepStory
from holdfast.runs import Run
from holdfast.view import transcript
from holdfast.view.sources import ViewedRun
from holdfast.view.transcript import WINDOW_STEPS, choose_window, load_transcript

KEY = "t/m/a/1"
STEPS = 130


@holdfast.solver
async def many(sample: holdfast.Sample, ctx: holdfast.Context) -> holdfast.Answer:
    messages = list(ctx.messages)
    for turn in range(STEPS):
        answer = await ctx.generate(messages, max_tokens=9)
        messages = [*messages, answer.message, {"role": "user", "content": f"turn {turn}"}]
    return answer


@holdfast.scorer
async def judged(sample: holdfast.Sample, answer: holdfast.Answer, ctx: holdfast.Context) -> bool:
    return bool((await ctx.generate("Well?", role="judge")).text)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    store = str(tmp_path_factory.mktemp("store"))
    task = holdfast.Task("t", [{"id": "a", "q": "why?"}], "{q}", solver=many, scorers=[judged])
    price = {"input": 1.0, "output": 1.0}
    model = {"name": "m", "provider": "mock", "price": price}
    with holdfast.run(task, models=[model], roles={"judge": "mock/j"}, store=store) as made:
        yield made


@pytest.fixture
def viewed(run: Run) -> Iterator[ViewedRun]:
    found = ViewedRun(run.place)
    with found.lock, contextlib.closing(found):
        found.refresh()
        yield found


def test_windows_together_are_the_whole_sample(run: Run, viewed: ViewedRun) -> None:
    whole = run.show(KEY)
    steps: list[StepStory] = []
    step: int | None = None
    while True:
        found = load_transcript(viewed, KEY, "", step)
        (attempt,) = found.story.attempts
        steps += attempt.steps
        assert len(attempt.steps) <= WINDOW_STEPS
        assert (attempt.turns, attempt.usage, attempt.dollars) == (
            whole.attempts[0].turns,
            whole.attempts[0].usage,
            whole.attempts[0].dollars,
        )
        assert found.story.messages == whole.messages
        assert found.story.judgings == whole.judgings
        if found.solving.after is None:
            break
        step = found.solving.after
    assert tuple(steps) == whole.attempts[0].steps
    assert found.solving.total == STEPS


def test_a_step_opens_the_window_that_has_it_also_one_of_a_judge(run: Run, viewed: ViewedRun) -> None:
    whole = run.show(KEY)
    wanted = whole.attempts[0].steps[77]
    found = load_transcript(viewed, KEY, "", wanted.n)
    assert (found.solving.first, found.solving.last) == (51, 100)
    assert wanted in found.story.attempts[0].steps
    assert load_transcript(viewed, KEY, "", 10**9).solving.last == STEPS
    judge = whole.judgings[0].told.steps[0]
    found = load_transcript(viewed, KEY, "", judge.n)
    assert found.solving.first == 1
    assert found.story.judgings[0].told.steps == (judge,)


def test_only_the_texts_of_the_window_are_decoded(viewed: ViewedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    plain = Reader.record_at

    def counting(reader: Reader, segment: int, offset: int) -> object:
        read.append(offset)
        return plain(reader, segment, offset)

    monkeypatch.setattr(Reader, "record_at", counting)
    monkeypatch.setattr(transcript, "_KEPT_STEPS", 100)
    found = load_transcript(viewed, KEY)
    assert sum(isinstance(step, StepOutline) for *_, step in found.records.steps) == STEPS + 1
    first = len(read)
    read.clear()
    load_transcript(viewed, KEY, "", found.solving.after)
    assert first > STEPS
    assert len(read) <= WINDOW_STEPS + 3  # the outline was kept: only the window, its parameters, the first, the judge


def test_a_kept_outline_is_not_used_for_other_records(viewed: ViewedRun, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "_KEPT_STEPS", 100)
    load_transcript(viewed, KEY)
    assert viewed.outline is not None
    viewed.outline.positions[0] = Position(1, 9, 9)  # as after a repair
    viewed.outline.records.steps.clear()
    assert load_transcript(viewed, KEY).solving.total == STEPS


def records(sizes: list[int]) -> KeyRecords:
    steps = [(10 * n, "", 1, StepOutline("solve/1", "q")) for n in range(1, len(sizes) + 1)]
    return KeyRecords(steps=list(steps), places=[(Position(n, 1, 0), size) for n, size in enumerate(sizes, 1)])


def test_large_records_make_short_windows_that_still_cover_everything() -> None:
    found = records([5_000_000] * 7)
    seen: list[int] = []
    step: int | None = None
    while True:
        shown, window = choose_window(found, range(7), step)
        seen += shown
        assert shown
        step = window.after
        if step is None:
            break
    assert seen == [10, 20, 30, 40, 50, 60, 70]


def test_a_number_between_two_steps_opens_the_next_one() -> None:
    shown, window = choose_window(records([1] * 60), range(60), 505)
    assert (window.first, shown[0]) == (51, 510)
    assert choose_window(records([]), [], 3) == ([], transcript.StepWindow())


def test_an_error_while_an_outline_is_extended_leaves_no_half_of_it(
    viewed: ViewedRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions = viewed.index.positions(transcript.find_key(viewed, KEY).o)
    monkeypatch.setattr(transcript, "_KEPT_STEPS", 10)
    with transcript.open_reader(viewed) as reader:
        transcript.read_outline(viewed, KEY, positions[:20], reader)
        found = Reader.record_at

        def fail(self: Reader, segment: int, offset: int) -> object:
            if offset == positions[40].offset:
                raise OSError("the disk is gone")
            return found(self, segment, offset)

        with monkeypatch.context() as patch:
            patch.setattr(Reader, "record_at", fail)
            with pytest.raises(OSError, match="gone"):
                transcript.read_outline(viewed, KEY, positions, reader)
        again = transcript.read_outline(viewed, KEY, positions, reader)
    numbers = [n for n, *_ in again.steps]
    assert numbers == sorted(set(numbers))
