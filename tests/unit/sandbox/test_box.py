"""A sample's sandbox: its files go with its steps, live, replayed and cut off anywhere."""

import asyncio
import errno
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

import holdfast
from holdfast.engine.attachments import blobs_of
from holdfast.errors import HoldfastError, SpecError
from holdfast.records.samples import Sample
from holdfast.sandbox import box
from holdfast.sandbox.box import Sandboxes
from holdfast.sandbox.confinement import SandboxFailedError
from holdfast.sandbox.snapshots import Blobs, FilesState, LostFilesError
from holdfast.sandbox.threads import Threads, WorkStopwatch
from holdfast.solve import AttemptResources, Context, RecordedStep, Scope, Steps, ToolFailedError, Workplace
from holdfast.solve.tools.built_in import bash, read_file, write_file
from holdfast.spec import Sandbox
from tests.unit.solve.stage import KEY, MemoryJournal

Solve = Callable[[Context], Awaitable[Any]]


class Played:
    """One process's attempt: what came of it, and what it recorded."""

    def __init__(self, result: Any, recorded: list[RecordedStep]) -> None:
        self.result = result
        self.recorded = recorded


def play(
    folder: Path, solve: Solve, recorded: Sequence[RecordedStep] = (), row: dict[str, Any] | None = None, **wanted: Any
) -> Played:
    """An attempt that finds these steps recorded; its sandbox is gone afterwards."""
    (folder / "boxes").mkdir(exist_ok=True)
    saving_seconds = wanted.pop("saving_seconds", 0.0)

    async def run() -> Played:
        journal = MemoryJournal(1000, saving_seconds)
        sandboxes = make_sandboxes(folder)
        means = AttemptResources({}, open_box=sandboxes.opener(Sandbox(**wanted), None))
        steps = Steps(Scope(0, KEY, "solve/1"), journal, recorded)
        sample = Sample("1", "question", None, row or {})
        ctx = Context(sample, [], steps, "seed", means)
        try:
            result = await solve(ctx)
        finally:
            await ctx.workplace.close()
            sandboxes.close()
        return Played(result, [*recorded, *journal.steps()])

    played = asyncio.run(run())
    assert os.listdir(folder / "boxes") == []
    return played


def make_sandboxes(folder: Path, commands: int = 0) -> Sandboxes:
    (folder / "boxes").mkdir(exist_ok=True)
    made = Sandboxes("uid", blobs_of(str(folder / "run")), lambda *_, **__: None, str(folder / "boxes"))
    made.threads = Threads(commands)
    return made


def many(sandboxes: Sandboxes, count: int, journal: MemoryJournal) -> list[Context]:
    """Attempts at so many samples."""
    means = AttemptResources({}, open_box=sandboxes.opener(Sandbox(), None))
    return [
        Context(Sample(str(o), "question", None, {}), [], Steps(Scope(o, f"t/m/{o}/1", "solve/1"), journal), "s", means)
        for o in range(count)
    ]


def until(found: Callable[[], bool]) -> None:
    while not found():
        time.sleep(0.001)


async def do(ctx: Context, command: str) -> Any:
    return await ctx.call("bash", {"command": command})


async def several(ctx: Context) -> list[Any]:
    return [
        await do(ctx, "echo 1 >> log; mkdir -p d; cat log"),
        await do(ctx, "echo 2 >> log; chmod 700 log; ln -s log d/l; cat log"),
        await do(ctx, "rm -r d; echo 3 >> log; cat log; ls -l | cut -c1-10"),
    ]


def test_cut_off_after_any_step_it_continues_with_the_files_as_they_were(tmp_path: Path) -> None:
    whole = play(tmp_path, several)
    assert whole.result[:2] == ["1", "1\n2"]
    assert whole.result[2].startswith("1\n2\n3\n")
    for count in range(len(whole.recorded) + 1):
        again = play(tmp_path, several, whole.recorded[:count])
        assert again.result == whole.result
        assert [each.step.files for each in again.recorded] == [each.step.files for each in whole.recorded]


def test_calls_that_are_made_at_once_are_made_one_after_the_other(tmp_path: Path) -> None:
    async def at_once(ctx: Context) -> list[Any]:
        line = "[ -e busy ] && echo clash; touch busy; sleep 0.05; rm busy; echo {} >> log; wc -l < log"
        return list(await asyncio.gather(*(do(ctx, line.format(number)) for number in range(4))))

    whole = play(tmp_path, at_once)
    assert whole.result == ["1", "2", "3", "4"]
    for count in range(5):
        assert play(tmp_path, at_once, whole.recorded[:count]).result == whole.result


def test_what_a_cancelled_call_changed_belongs_to_the_next(tmp_path: Path) -> None:
    async def impatient(ctx: Context) -> str:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await do(ctx, "echo early > a; sleep 600")
        first = await do(ctx, "cat a")
        return f"{first} {await do(ctx, 'cat a')}"

    whole = play(tmp_path, impatient)
    assert whole.result == "early early"
    assert [each.step.cancelled for each in whole.recorded] == [True, False, False]
    after_first = whole.recorded[:2]

    async def rest(ctx: Context) -> str:
        return f"{await do(ctx, 'cat a')} {await do(ctx, 'cat a')}"

    assert play(tmp_path, rest, after_first[1:]).result == "early early"


def test_what_a_call_changed_that_was_cancelled_while_it_was_saved_belongs_to_the_next(tmp_path: Path) -> None:
    async def impatient(ctx: Context) -> str:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.0):
                await do(ctx, "echo early > a")
        await do(ctx, "true")
        return str(await do(ctx, "cat a"))

    whole = play(tmp_path, impatient, saving_seconds=2.0)
    assert whole.result == "early"
    assert [each.step.cancelled for each in whole.recorded][-3:] == [True, False, False]
    assert play(tmp_path, impatient, whole.recorded[:-1]).result == "early"


def test_a_tool_that_fails_keeps_what_it_did(tmp_path: Path) -> None:
    @holdfast.tool(sandboxed=True)
    async def half(ctx: Workplace) -> None:
        """Does half of it."""
        await ctx.sandbox.write("deep/a", "half")
        raise ValueError("that was all")

    async def solve(ctx: Context) -> Any:
        with pytest.raises(ToolFailedError, match="that was all"):
            await ctx.call(half)
        return await ctx.call(read_file, {"path": "deep/a"})

    whole = play(tmp_path, solve)
    assert whole.result == "half"
    assert play(tmp_path, solve, whole.recorded[:1]).result == "half"


def test_own_tools_read_write_and_run_in_it(tmp_path: Path) -> None:
    @holdfast.tool(sandboxed=True)
    async def look(ctx: Workplace, path: str) -> dict[str, Any]:
        """Look at a file."""
        await ctx.sandbox.write(path, b"\xff\x00 bytes")
        ran = await ctx.sandbox.run("cat; exit 2", given="given")
        with pytest.raises(FileNotFoundError, match="No such file"):
            await ctx.sandbox.read("nope")
        return {"read": (await ctx.sandbox.read(path)).hex(), "code": ran.code, "out": ran.stdout}

    async def solve(ctx: Context) -> Any:
        return await ctx.call(look, {"path": "a b/c d"})

    assert play(tmp_path, solve).result == {"read": b"\xff\x00 bytes".hex(), "code": 2, "out": "given"}


def test_the_first_files_come_from_the_row(tmp_path: Path) -> None:
    async def solve(ctx: Context) -> Any:
        return await do(ctx, "cat in/code.py; cat more.json; rm more.json; ls in")

    wanted: dict[str, Any] = {"files": {"in/code.py": "code", "more.json": "more", "none": "nothing"}}
    row = {"code": "print(1)\n", "more": {"a": 1}, "nothing": None}
    whole = play(tmp_path, solve, (), row, **wanted)
    assert whole.result == 'print(1)\n{"a":1}code.py'

    async def again(ctx: Context) -> Any:
        return f"{await solve(ctx)} {await do(ctx, 'ls')}"

    assert play(tmp_path, again, whole.recorded, row, **wanted).result.endswith(" in")


def test_a_sandbox_that_was_emptied_stays_empty(tmp_path: Path) -> None:
    async def emptied(ctx: Context) -> Any:
        # A Python environment below /tmp is shown there, read-only: `rm` cannot remove it.
        return await do(ctx, "cat given; rm -rf ./* $TMPDIR/* 2>/dev/null; true")

    async def more(ctx: Context) -> Any:
        return [await emptied(ctx), await do(ctx, "ls -A . $TMPDIR")]

    whole = play(tmp_path, emptied, (), {"column": "text"}, files={"given": "column"})
    again = play(tmp_path, more, whole.recorded, {"column": "text"}, files={"given": "column"})
    assert again.result[0] == "text"
    assert "given" not in again.result[1]


def test_temporary_files_are_kept_too(tmp_path: Path) -> None:
    async def solve(ctx: Context) -> Any:
        return [await do(ctx, "echo kept > $TMPDIR/a"), await do(ctx, "cat $TMPDIR/a; ls")]

    whole = play(tmp_path, solve)
    assert whole.result[1] == "kept"
    assert play(tmp_path, solve, whole.recorded[:1]).result == whole.result
    files = whole.recorded[0].step.files
    assert files is not None
    assert sorted(files.changed) == ["sandbox", "tmp", "tmp/a"]


def test_files_that_are_lost_end_the_attempt_whatever_the_solver_makes_of_it(tmp_path: Path) -> None:
    whole = play(tmp_path, several)
    for blob in (tmp_path / "run" / "blobs").iterdir():
        blob.unlink()
    with pytest.raises(LostFilesError, match="'sandbox/log' cannot be restored"):
        play(tmp_path, several, whole.recorded[:2])

    async def careless(ctx: Context) -> str:
        try:
            await several(ctx)
        except HoldfastError:
            return "never mind"
        return "well"

    async def attempt(ctx: Context) -> str:
        answer = await careless(ctx)
        ctx.workplace.raise_loss()
        return answer

    with pytest.raises(LostFilesError):
        play(tmp_path, attempt, whole.recorded[:2])
    assert play(tmp_path, several, whole.recorded).result == whole.result  # a replay alone needs no files


def test_that_a_sandbox_cannot_be_made_is_not_reported_to_the_model(tmp_path: Path) -> None:
    async def solve(ctx: Context) -> None:
        os.rmdir(tmp_path / "boxes")
        try:
            await do(ctx, "true")
        finally:
            os.mkdir(tmp_path / "boxes")

    with pytest.raises(SandboxFailedError, match=r"cannot be made: .*No such file"):
        play(tmp_path, solve)


def test_steps_that_do_not_fit_together_are_found(tmp_path: Path) -> None:
    async def moody(ctx: Context) -> list[Any]:
        return [await do(ctx, "date +%N > a"), await do(ctx, "echo x > b"), await do(ctx, "cat b")]

    whole = play(tmp_path, moody)
    with pytest.raises(LostFilesError, match="one between them is missing"):
        play(tmp_path, moody, whole.recorded[1:2])
    exact = play(tmp_path, several)
    assert play(tmp_path, several, exact.recorded[1:2]).result == exact.result  # made again, it is what it was


def test_limits_and_mistakes_are_answers_to_the_model(tmp_path: Path) -> None:
    async def solve(ctx: Context) -> list[Any]:
        said = [
            await do(ctx, "echo out; echo err >&2; exit 3"),
            await do(ctx, "echo begun; sleep 600"),
            await ctx.call("python", {"code": "print(1 / 0)"}),
            await ctx.call(write_file, {"path": "a/b", "content": "ü"}),
            await ctx.call(read_file, {"path": "a/b"}),
        ]
        for command, error in (("x" * 200_000, "write it to a file first"), ("a\0b", "NUL")):
            with pytest.raises(ToolFailedError, match=error):
                await ctx.call(bash, {"command": command})
        return said

    said = play(tmp_path, solve, seconds=1).result
    assert said[0] == "out\n[stderr]\nerr\n[exit code 3]"
    assert said[1] == "begun\n[it took longer than 1 s, and was killed with everything that it had started]"
    assert said[2].endswith("ZeroDivisionError: division by zero\n[exit code 1]")
    assert said[3:] == ["a/b is written", "ü"]


def test_after_too_many_files_were_made_some_can_be_removed_and_the_rest_is_kept(tmp_path: Path) -> None:
    async def solve(ctx: Context) -> list[Any]:
        fill = "for i in 1 2 3; do head -c 1000000 /dev/zero > f$i; done; sleep 60"
        return [await do(ctx, line) for line in (fill, "rm f1 f2; sleep 0.5; ls", "cat f3 | wc -c")]

    whole = play(tmp_path, solve, files_mb=2)
    assert whole.result[0].startswith("[it had more than 2 MiB in files, or more than 10000 files, and was killed")
    assert whole.result[1:] == ["f3", "1000000"]
    assert play(tmp_path, solve, whole.recorded[:2], files_mb=2).result == whole.result


def test_a_sandboxed_tool_must_be_repeatable_and_take_its_sandbox(tmp_path: Path) -> None:
    def alone() -> None:
        """Takes nothing."""

    with pytest.raises(SpecError, match="needs a parameter `ctx`"):
        holdfast.tool(sandboxed=True)(alone)

    async def plain(ctx: Workplace) -> str:
        """Is not sandboxed."""
        return (await ctx.sandbox.run("true")).stdout

    async def solve(ctx: Context) -> Any:
        with pytest.raises(ToolFailedError, match="sandboxed=True"):
            await ctx.call(plain)

    assert play(tmp_path, solve).result is None


def test_what_has_ended_is_recorded_while_others_still_wait_for_a_thread(tmp_path: Path) -> None:
    async def process() -> None:
        journal, sandboxes, gate = MemoryJournal(), make_sandboxes(tmp_path, commands=1), threading.Event()
        first, second, third = contexts = many(sandboxes, 3, journal)
        ended = asyncio.ensure_future(do(first, "echo 1 > a"))
        await asyncio.to_thread(until, lambda: len(sandboxes.calls) == 1)
        blocking = asyncio.ensure_future(sandboxes.threads.command(gate.wait, gate.set, WorkStopwatch()))
        waiting = [asyncio.ensure_future(do(each, "echo 2 > a")) for each in (second, third)]
        await asyncio.wait([ended], timeout=60)
        assert [each.step.o for each in journal.steps()] == [0]
        await asyncio.to_thread(until, lambda: len(sandboxes.calls) == 2)
        waiting[0].cancel()  # it waits for a thread: it ends at once, and never begins
        await asyncio.wait([waiting[0]], timeout=60)
        assert [waiting[0].done(), waiting[1].done(), blocking.done()] == [True, False, False]
        gate.set()
        await asyncio.wait([blocking, waiting[1]])
        assert [each.step.o for each in journal.steps() if not each.step.cancelled] == [0, 2]
        for each in contexts:
            await each.close()
        sandboxes.close()

    asyncio.run(process())
    assert os.listdir(tmp_path / "boxes") == []


def test_one_tool_can_use_it_several_times_at_once(tmp_path: Path) -> None:
    @holdfast.tool(sandboxed=True)
    async def several_files(ctx: Workplace) -> list[str]:
        """Write several files at once."""
        await asyncio.gather(*(ctx.sandbox.write(f"f{each}", str(each) * 100_000) for each in range(6)))
        found = await asyncio.gather(*(ctx.sandbox.read(f"f{each}") for each in range(6)))
        return [f"{content[:1].decode()}{len(set(content))}{len(content)}" for content in found]

    async def solve(ctx: Context) -> Any:
        return [await ctx.call(several_files), await do(ctx, "ls")]

    whole = play(tmp_path, solve)
    assert whole.result == [[f"{each}1100000" for each in range(6)], "\n".join(f"f{each}" for each in range(6))]
    assert play(tmp_path, solve, whole.recorded[:1]).result == whole.result


def test_a_recorded_call_that_is_delivered_while_another_is_made_begins_the_sample_anew(tmp_path: Path) -> None:
    """Its files would be gone, and nothing would say so."""
    happened: set[str] = set()

    @holdfast.tool(sandboxed=True)
    async def slow(ctx: Workplace) -> str:
        """Is overtaken after its first file."""
        await ctx.sandbox.write("b", "b")
        happened.add("begun")
        await asyncio.to_thread(until, lambda: "delivered" in happened)
        return (await ctx.sandbox.run("ls")).stdout

    def solver(overtaken: bool) -> Solve:
        async def first(ctx: Context) -> Any:
            if overtaken:
                await asyncio.to_thread(until, lambda: "begun" in happened)
            said = await do(ctx, "echo a > a")
            happened.add("delivered")
            return said

        async def second(ctx: Context) -> Any:
            if not overtaken:
                await asyncio.to_thread(until, lambda: "delivered" in happened)
            return await ctx.call(slow)

        async def solve(ctx: Context) -> Any:
            return await asyncio.gather(first(ctx), second(ctx))

        return solve

    whole = play(tmp_path, solver(overtaken=False))
    assert whole.result == ["", "a\nb\n"]
    happened.clear()
    with pytest.raises(LostFilesError, match="delivered while another was being made"):
        play(tmp_path, solver(overtaken=True), whole.recorded[:1])


def test_a_replay_alone_puts_no_states_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = play(tmp_path, several)

    def never(*_: Any) -> Any:
        raise AssertionError("nobody needs it")

    with monkeypatch.context() as patched:
        patched.setattr(FilesState, "after", never)
        assert play(tmp_path, several, whole.recorded).result == whole.result


def test_the_end_of_an_attempt_ends_what_runs_in_its_sandbox_and_lets_nothing_begin(tmp_path: Path) -> None:
    async def process() -> None:
        journal, sandboxes = MemoryJournal(), make_sandboxes(tmp_path)
        (ctx,) = many(sandboxes, 1, journal)
        made = [asyncio.ensure_future(do(ctx, "touch begun; sleep 600")) for _ in range(2)]
        await asyncio.to_thread(until, lambda: bool(list((tmp_path / "boxes").rglob("begun"))))
        await ctx.close()
        assert os.listdir(tmp_path / "boxes") == []
        ended = await asyncio.gather(*made, return_exceptions=True)
        assert [type(each) for each in ended] == [SandboxFailedError] * 2
        assert "the attempt has ended" in str(ended[1])
        assert journal.steps() == []
        sandboxes.close()

    asyncio.run(process())
    assert os.listdir(tmp_path / "boxes") == []


def test_waiting_for_a_turn_or_a_thread_is_no_work(tmp_path: Path) -> None:
    async def process() -> None:
        journal, sandboxes, gate = MemoryJournal(), make_sandboxes(tmp_path, commands=1), threading.Event()
        (ctx,) = many(sandboxes, 1, journal)
        began = time.monotonic()
        blocking = asyncio.ensure_future(sandboxes.threads.command(gate.wait, gate.set, WorkStopwatch()))
        made = [asyncio.ensure_future(do(ctx, f"sleep 0.1; echo {each} > a")) for each in range(3)]
        await asyncio.to_thread(until, lambda: bool(sandboxes.calls))
        await asyncio.sleep(1)
        gate.set()
        await asyncio.wait([blocking, *made])
        took = time.monotonic() - began
        seconds = [each.step.seconds for each in journal.steps()]
        assert len(seconds) == 3
        assert all(each >= 0.1 for each in seconds)
        assert sum(seconds) + 1 <= took
        await ctx.close()
        sandboxes.close()

    asyncio.run(process())


def test_while_the_disk_is_full_the_sample_waits_and_that_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(box, "_SPACE_PAUSE_SECONDS", 0.01)
    told: list[str] = []
    full = [3, 2]  # so often, keeping and restoring

    def blobs(real: Blobs) -> Blobs:
        def no_space(index: int) -> None:
            full[index] -= 1
            if full[index] >= 0:
                raise OSError(errno.ENOSPC, "No space left on device")

        def keep(pieces: Iterable[bytes]) -> str:
            no_space(0)
            return real.keep(pieces)

        def read(digest: str) -> Iterator[bytes]:
            no_space(1)
            return real.read(digest)

        return msgspec.structs.replace(real, keep=keep, read=read)

    def made(folder: Path, commands: int = 0) -> Sandboxes:
        kept = blobs(blobs_of(str(folder / "run")))
        return Sandboxes("uid", kept, lambda event, *_, **__: told.append(event), str(folder / "boxes"))

    monkeypatch.setitem(globals(), "make_sandboxes", made)
    whole = play(tmp_path, several)
    assert (whole.result[:2], full[0] < 0, told) == (["1", "1\n2"], True, ["sandbox.disk_full"])
    assert play(tmp_path, several, whole.recorded[:2]).result == whole.result
    assert (full[1] < 0, told) == (True, ["sandbox.disk_full"] * 2)


def test_what_was_being_written_at_a_crash_is_removed_when_the_run_begins_and_not_before(tmp_path: Path) -> None:
    left = tmp_path / "run" / "blobs" / "new-1.tmp"
    left.parent.mkdir(parents=True)
    left.write_text("half")
    sandboxes = make_sandboxes(tmp_path)
    assert left.exists()  # making an engine looks at no folder
    asyncio.run(sandboxes.begin([]))
    assert not left.exists()


def test_that_memory_is_only_counted_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[str, str]] = []
    (tmp_path / "boxes").mkdir()
    sandboxes = Sandboxes(
        "uid",
        blobs_of(str(tmp_path / "run")),
        lambda event, text: events.append((event, text)),
        str(tmp_path / "boxes"),
    )
    monkeypatch.setattr("holdfast.sandbox.box.control_groups", lambda: ({}, "none can be made"))
    monkeypatch.setattr("holdfast.sandbox.box.why_no_namespaces", lambda: "")
    monkeypatch.setattr("holdfast.sandbox.box.call_filter", lambda namespaces: b"filter")
    for _ in range(2):
        asyncio.run(sandboxes.begin([Sandbox()]))
    text = "memory of sandboxed commands is counted ten times a second: none can be made"
    assert events == [("sandbox.counted", text)]


def test_where_nothing_keeps_a_command_from_your_files_it_runs_only_if_you_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "boxes").mkdir()
    monkeypatch.setattr(box, "why_no_namespaces", lambda: "there are none")
    monkeypatch.delenv("HOLDFAST_NO_NAMESPACES", raising=False)

    async def begin() -> None:
        sandboxes = make_sandboxes(tmp_path)
        try:
            await sandboxes.begin([Sandbox()])
        finally:
            sandboxes.close()

    async def solve(ctx: Context) -> Any:
        return await do(ctx, "echo done")

    with pytest.raises(HoldfastError, match=r"could read and change what you can; .* HOLDFAST_NO_NAMESPACES=1"):
        asyncio.run(begin())
    with pytest.raises(SandboxFailedError, match="could read and change what you can"):
        play(tmp_path, solve)
    monkeypatch.setenv("HOLDFAST_NO_NAMESPACES", "1")
    asyncio.run(begin())
    assert play(tmp_path, solve).result == "done"
