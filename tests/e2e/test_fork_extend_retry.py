"""`fork`, `extend`, `retry` and `resume --keep-failed` as a user types them: exit codes, sentences, what is asked."""

import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from holdfast.errors import UsageError
from holdfast.runs.fork import Fork
from holdfast.testing import Behaviour, Fault, ServerProcess, start_server_process
from tests.e2e.commands import Done, call, exported, kill_when, run, shown, snapshot, sums, write_rows, write_spec

RUN = "x"
FORK = "y"

_TWICE = '''\
import holdfast


async def ask_twice(sample, ctx):
    """Two turns, so that a kill also finds samples that are half done."""
    first = await ctx.generate()
    check = {"role": "user", "content": f"Check it once more: {sample.input}"}
    return await ctx.generate([*ctx.messages, first.message, check])


@holdfast.scorer
def close(sample, answer):
    return answer.text == sample.target
'''


def store(folder: Path) -> Path:
    return folder / "runs"


def begin(folder: Path, server: ServerProcess, rows: int = 6, **changes: Any) -> Path:
    """A spec and its finished run."""
    spec = write_spec(folder, rows, server.base_url, **changes)
    done = call("run", spec, "--id", RUN, cwd=folder)
    assert done.code == 0, done.err
    return spec


def one_sentence(done: Done, code: int, *named: str) -> None:
    """A refusal: its exit code, no traceback, and the words that tell what is wrong."""
    assert done.code == code, done.said
    assert "Traceback" not in done.err
    assert done.err.startswith("holdfast: "), done.err
    for name in named:
        assert name in done.err, done.err


def changed(spec: Path, **changes: Any) -> Path:
    """The same spec with other fields, in another file beside it."""
    mapping = yaml.safe_load(spec.read_text())
    mapping["tasks"][0].update(changes.pop("task", {}))
    mapping["models"][0].update(changes.pop("model", {}))
    mapping.update(changes)
    path = spec.with_name("changed.yaml")
    path.write_text(yaml.safe_dump(mapping, sort_keys=False))
    return path


def answers(run_id: str, folder: Path) -> dict[str, tuple[Any, ...]]:
    lines = exported(run_id, store(folder))
    return {line["key"]: (line["status"], line["output"], line["scores"]) for line in lines}


def test_fork_says_what_it_will_cost_before_there_is_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def unmade(_: Fork) -> None:
        raise UsageError("stopped in time")

    with start_server_process(Behaviour()) as server:
        begin(tmp_path, server)
        monkeypatch.setattr(Fork, "make", unmade)
        priced = [f"models.arith.price={{input: 500, output: {dollars}}}" for dollars in (500, 500000)]
        told = [call("fork", RUN, "--set", each, "--set", "seed=1", cwd=tmp_path).err for each in priced]
        told += [call("fork", RUN, "--set", priced[1], "--set", "tasks.sums.prompt={question}", cwd=tmp_path).err]
        unpriced = call("fork", RUN, "--set", "tasks.sums.prompt={question}", cwd=tmp_path).err
    assert all("reuses 6 steps, sends about 0 requests" in each and ", about $0.00;" in each for each in told[:2])
    assert re.search(r"reuses 0 steps, sends about 6 requests, about \S+ tokens, about \$[1-9][\d,]*\.\d\d;", told[2])
    assert "reuses 0 steps, sends about 6 requests" in unpriced
    assert "$" not in unpriced
    assert all("stopped in time" in each for each in (*told, unpriced))
    assert [path.name for path in (store(tmp_path) / "sums").iterdir()] == [RUN]


def test_a_dry_run_estimates_the_cost_if_there_is_a_price(tmp_path: Path) -> None:
    model = {"price": {"input": 10000.0, "output": 1000.0}, "params": {"max_tokens": 100}}
    spec = write_spec(tmp_path, 6, model=model)
    told = call("run", spec, "--dry-run", cwd=tmp_path)
    assert "An estimate: $0.4760 to $1.68 in all; no request was sent." in told.out
    cell = call("run", spec, "--dry-run", "--json", cwd=tmp_path).json()["cells"][0]
    assert cell["input_dollars"] == pytest.approx(cell["input_tokens"] / 100)
    assert cell["output_dollars_max"] == pytest.approx(0.6)
    open_ended = call("run", spec, "--dry-run", "--set", "models.arith.params={}", cwd=tmp_path)
    assert "An estimate: at least $0.4760 in all" in open_ended.out
    assert "set max_tokens" in open_ended.out
    assert "$" not in call("run", spec, "--dry-run", "--set", "models.arith.price=null", cwd=tmp_path).out


def test_fork_says_what_it_reuses_and_sends_no_request_if_nothing_changed(tmp_path: Path) -> None:
    with start_server_process() as server:
        begin(tmp_path, server)
        before = snapshot(store(tmp_path))
        dry = call("fork", RUN, "--dry-run", cwd=tmp_path)
        assert dry.code == 0
        assert "reuses 6" in dry.err
        assert snapshot(store(tmp_path)) == before
        assert [each["run_id"] for each in call("ls", "--json", cwd=tmp_path).json()] == [RUN]
        forked = call("fork", RUN, "--id", FORK, cwd=tmp_path)
        assert forked.code == 0, forked.err
        assert "reuses 6 steps, sends about 0 requests" in forked.err
        assert server.stats().requests == 6
    assert answers(FORK, tmp_path) == answers(RUN, tmp_path)
    told = shown(FORK, store(tmp_path))
    assert not any(told["usage"].values())
    assert told["saved"] == shown(RUN, store(tmp_path))["usage"]
    assert (told["steps"]["live"], told["steps"]["replayed"], told["steps"]["orphaned"]) == (0, 6, 0)
    assert [each["run_id"] for each in call("ls", "--json", cwd=tmp_path).json()] == [RUN, FORK]


@pytest.mark.parametrize("way", ["--set", "a file"])
def test_fork_takes_changes_from_the_command_line_or_from_a_file(tmp_path: Path, way: str) -> None:
    with start_server_process() as server:
        spec = begin(tmp_path, server)
        prompt = "How much is {question}?"
        given = ["--set", f"tasks.sums.prompt={prompt}"]
        if way == "a file":
            given = [str(changed(spec, task={"prompt": prompt}))]
        forked = call("fork", RUN, *given, "--id", FORK, cwd=tmp_path)
        assert forked.code == 0, forked.err
        assert "reuses 0 steps, sends about 6 requests" in forked.err
        assert server.stats().requests == 12
    told = shown(FORK, store(tmp_path))
    assert (told["steps"]["live"], told["steps"]["replayed"]) == (6, 0)


def test_a_fork_lives_on_without_its_parent_and_without_the_data(tmp_path: Path) -> None:
    with start_server_process() as server:
        (tmp_path / "twice.py").write_text(_TWICE)
        begin(tmp_path, server, task={"solver": "twice:ask_twice"})
        wanted = answers(RUN, tmp_path)
        (tmp_path / "sums.jsonl").unlink()
        assert call("fork", RUN, "--id", FORK, cwd=tmp_path).code == 0
        shutil.rmtree(store(tmp_path) / "sums" / RUN)
        assert call("resume", FORK, cwd=tmp_path).code == 0
        assert call("verify", FORK, cwd=tmp_path).code == 0
        assert call("report", FORK, cwd=tmp_path).code == 0
        assert call("show", FORK, "sums/arith/s0001/1", cwd=tmp_path).code == 0
        assert answers(FORK, tmp_path) == wanted
        again = call("fork", FORK, "--id", "z", cwd=tmp_path)
        assert again.code == 0, again.err
        assert server.stats().requests == 12
    assert answers("z", tmp_path) == wanted


def test_fork_to_an_id_that_is_taken_is_a_mistake_of_usage(tmp_path: Path) -> None:
    with start_server_process() as server:
        begin(tmp_path, server)
        before = snapshot(store(tmp_path))
        one_sentence(call("fork", RUN, "--id", RUN, cwd=tmp_path), 2, RUN)
        one_sentence(call("fork", RUN, "--id", "", cwd=tmp_path), 2)
        one_sentence(call("fork", "nobody", cwd=tmp_path), 2, "nobody")
        one_sentence(call("fork", RUN, "--set", "tasks.sums.prompt={nothing}", cwd=tmp_path), 2, "nothing")
        assert snapshot(store(tmp_path)) == before
        assert server.stats().requests == 6


@pytest.mark.parametrize(
    "seed", [3, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, *range(4, 30)))], ids="seed {}".format
)
def test_a_fork_that_is_killed_while_it_is_made_is_made_by_the_same_command(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    rows = 150
    with start_server_process() as server:
        (tmp_path / "twice.py").write_text(_TWICE)
        begin(tmp_path, server, rows, task={"solver": "twice:ask_twice"})
        command = ("fork", RUN, "--id", FORK)
        building = store(tmp_path) / "sums"
        sign = chance.choice(["spec.yaml", "journal", "journal", "plan.jsonl.zst", ""])
        pause = range(chance.randint(0, 15))

        def is_building(sign: str = sign, pause: range = pause) -> bool:
            found = any(path.parent.name != RUN for path in building.glob(f"*/{sign}"))
            for _ in pause if found else ():
                server.stats()  # time passes
            return found

        kill_when(is_building, *command, cwd=tmp_path)
        listed = call("ls", "--json", cwd=tmp_path).json()
        assert {each["run_id"] for each in listed} <= {RUN, FORK}
        whole = any(each["run_id"] == FORK for each in listed)
        assert not whole or shown(FORK, store(tmp_path))["planned"] == rows
        done = call(*command, cwd=tmp_path)
        assert done.code == 0, done.err
        assert server.stats().requests == 2 * rows
    assert answers(FORK, tmp_path) == answers(RUN, tmp_path)
    assert call("verify", FORK, cwd=tmp_path).code == 0
    assert sorted(path.name for path in building.iterdir()) == [RUN, FORK]


def test_a_fork_of_a_killed_run_continues_with_what_was_half_done(tmp_path: Path) -> None:
    rows = 60
    with start_server_process(Behaviour(latency_seconds=0.02, jitter_seconds=0.02)) as server:
        (tmp_path / "twice.py").write_text(_TWICE)
        model = {"max_connections": 4}
        spec = write_spec(tmp_path, rows, server.base_url, task={"solver": "twice:ask_twice"}, model=model)
        assert kill_when(lambda: server.stats().requests >= 45, "run", spec, "--id", RUN, cwd=tmp_path)
        before = shown(RUN, store(tmp_path))
        assert before["status"] == "interrupted"
        forked = call("fork", RUN, "--id", FORK, cwd=tmp_path)
        assert forked.code == 0, forked.err
        stats = server.stats()
    told = shown(FORK, store(tmp_path))
    assert told["finished"] == rows
    assert told["steps"]["live"] == 2 * rows - before["steps"]["live"]
    assert stats.requests == 2 * rows + stats.repeats
    assert stats.repeats <= 4
    assert f"reuses {before['steps']['live']} steps," in forked.err


def test_extend_adds_what_the_spec_has_more(tmp_path: Path) -> None:
    with start_server_process() as server:
        spec = begin(tmp_path, server, rows=3)
        more = call("extend", RUN, "--set", "tasks.sums.repeats=2", cwd=tmp_path)
        assert more.code == 0, more.err
        write_rows(tmp_path / "sums.jsonl", sums(5))
        larger = changed(spec, task={"repeats": 2})
        assert call("extend", RUN, larger, cwd=tmp_path).code == 0
        assert server.stats().requests == 10
        again = call("run", larger, "--id", RUN, cwd=tmp_path)
        assert again.code == 0, again.err
        assert server.stats().requests == 10
        old = call("run", spec, "--id", RUN, cwd=tmp_path)
        one_sentence(old, 3, "tasks.sums.repeats")
        told = shown(RUN, store(tmp_path))
        assert (told["planned"], told["finished"], told["status"]) == (10, 10, "completed")
        report = call("report", RUN, "--json", cwd=tmp_path).json()
        assert [(cell["task"], cell["model"], cell["planned"]) for cell in report["cells"]] == [("sums", "arith", 10)]
        assert [each["planned"] for each in call("ls", "--json", cwd=tmp_path).json()] == [10]
        assert call("show", RUN, "sums/arith/s0005/2", cwd=tmp_path).code == 0
        assert call("verify", RUN, cwd=tmp_path).code == 0
        (tmp_path / "whole").mkdir()
        whole = write_spec(tmp_path / "whole", 5, server.base_url, task={"repeats": 2})
        assert call("run", whole, "--id", "w", cwd=tmp_path).code == 0
    assert answers(RUN, tmp_path) == answers("w", tmp_path)


def test_extend_by_limit(tmp_path: Path) -> None:
    with start_server_process() as server:
        spec = write_spec(tmp_path, 8, server.base_url)
        assert call("run", spec, "--id", RUN, "--limit", "2", cwd=tmp_path).code == 0
        assert call("extend", RUN, "--limit", "5", cwd=tmp_path).code == 0
        assert server.stats().requests == 5
        before = snapshot(store(tmp_path))
        one_sentence(call("extend", RUN, "--limit", "3", cwd=tmp_path), 3, "already has 5 samples of each task (limit)")
        one_sentence(call("run", spec, "--id", RUN, "--limit", "2", cwd=tmp_path), 3, f"  holdfast resume {RUN}\n")
        assert call("extend", RUN, "--limit", "5", cwd=tmp_path).code == 0
        assert snapshot(store(tmp_path)) == before
        assert call("extend", RUN, spec, cwd=tmp_path).code == 0
        assert server.stats().requests == 8


def test_damage_in_a_block_that_was_added_is_found_by_verify_and_refused_by_resume(tmp_path: Path) -> None:
    with start_server_process() as server:
        begin(tmp_path, server)
        assert call("extend", RUN, "--set", "tasks.sums.repeats=2", cwd=tmp_path).code == 0
        for name in ("data-2.jsonl.zst", "plan-2.jsonl.zst"):
            path = store(tmp_path) / "sums" / RUN / name
            good = path.read_bytes()
            path.write_bytes(bytes([*good[:30], good[30] ^ 1, *good[31:]]))
            verified = call("verify", RUN, cwd=tmp_path)
            assert verified.code == 5
            assert name in verified.out
            one_sentence(call("resume", RUN, cwd=tmp_path), 5, name)
            path.write_bytes(good)
        assert call("resume", RUN, cwd=tmp_path).code == 0
        assert server.stats().requests == 12


def test_an_extension_killed_after_its_record_is_continued_by_a_plain_resume(tmp_path: Path) -> None:
    with start_server_process(Behaviour(latency_seconds=0.05)) as server:
        spec = begin(tmp_path, server, model={"max_connections": 2})
        extend = ["extend", RUN, "--set", "tasks.sums.repeats=5"]
        assert kill_when(lambda: server.stats().requests >= 12, *extend, cwd=tmp_path)
        told = shown(RUN, store(tmp_path))
        assert (told["status"], told["planned"]) == ("interrupted", 30)
        one_sentence(call("run", spec, "--id", RUN, cwd=tmp_path), 3, "repeats")
        done = call("resume", RUN, cwd=tmp_path)
        assert done.code == 0, done.err
        assert 30 <= server.stats().requests <= 32
    told = shown(RUN, store(tmp_path))
    assert (told["status"], told["finished"], told["steps"]["live"]) == ("completed", 30, 30)


def failing(folder: Path, server: ServerProcess) -> tuple[Path, list[str]]:
    """A run with failed samples, and their keys."""
    model = {"request_retries": 0}
    spec = write_spec(folder, 8, server.base_url, model=model, task={"sample_retries": 0})
    assert call("run", spec, "--id", RUN, cwd=folder).code == 1
    failed = [line["key"] for line in exported(RUN, store(folder)) if line["status"] == "failed"]
    assert 2 <= len(failed) < 8
    return spec, failed


def test_retry_runs_the_chosen_samples_only(tmp_path: Path) -> None:
    with start_server_process(Behaviour(faults=[Fault("500", every=2)])) as server, start_server_process() as sound:
        _, failed = failing(tmp_path, server)
        finished = next(line["key"] for line in exported(RUN, store(tmp_path)) if line["status"] == "finished")
        kept = call("resume", RUN, "--keep-failed", "--set", f"models.arith.base_url={sound.base_url}", cwd=tmp_path)
        assert kept.code == 1
        assert (sound.stats().requests, shown(RUN, store(tmp_path))["failed"]) == (0, len(failed))
        one = call("retry", RUN, failed[0], cwd=tmp_path)
        assert one.code == 1, one.said
        assert (sound.stats().requests, shown(RUN, store(tmp_path))["failed"]) == (1, len(failed) - 1)
        assert call("retry", RUN, failed[0], cwd=tmp_path).code == 1, "the others are still failed"
        for words in (["--kind", "nonsense"], ["nobody/at/all/1"], [finished], ["--failed", "--kind", "server"]):
            one_sentence(call("retry", RUN, *words, cwd=tmp_path), 2)
        assert sound.stats().requests == 1
        rest = call("retry", RUN, "--kind", "server", cwd=tmp_path)
        assert rest.code == 0, rest.said
        assert sound.stats().requests == len(failed)
        before = snapshot(store(tmp_path))
        none = call("retry", RUN, "--failed", cwd=tmp_path)
        assert (none.code, none.out) == (0, f"{RUN} has no failed samples: nothing was retried.\n")
        assert snapshot(store(tmp_path)) == before
        assert sound.stats().requests == len(failed)
    assert {line["status"] for line in exported(RUN, store(tmp_path))} == {"finished"}


def test_retry_of_an_unfinished_run_without_failed_samples_records_nothing(tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    assert call("run", spec, "--id", RUN, "--set", "limits.run.requests=1", cwd=tmp_path).code == 6
    before = snapshot(store(tmp_path))
    done = call("retry", RUN, cwd=tmp_path)
    assert done.code == 0, done.err
    left = shown(RUN, store(tmp_path))["unfinished"]
    rest = f"To answer the {left} unfinished samples: holdfast resume {RUN}"
    assert done.out == f"{RUN} has no failed samples: nothing was retried. {rest}\n"
    assert snapshot(store(tmp_path)) == before


def test_retry_without_a_choice_and_with_failed_mean_all(tmp_path: Path) -> None:
    for words in ([], ["--failed"]):
        folder = tmp_path / f"{len(words)}"
        folder.mkdir()
        with start_server_process(Behaviour(faults=[Fault("500", every=2)])) as server:
            _, failed = failing(folder, server)
            before = server.stats().requests
            call("retry", RUN, *words, cwd=folder)
            assert server.stats().requests == before + len(failed)


SPEC_FILES: dict[str, bytes] = {
    "empty": b"",
    "no mapping": b"- a\n",
    "no YAML": b"a: [\n",
    "no UTF-8": b"\xff\xfe\x00",
    "tampered": b"experiment: other\n",
    "newer": b"# Format 99\nexperiment: sums\n",
    "a bad tag": b"a: !!bool maybe\n",
}


@pytest.mark.parametrize("how", SPEC_FILES)
def test_a_spec_file_that_was_changed_is_named_by_the_refusal(tmp_path: Path, how: str) -> None:
    spec = write_spec(tmp_path)
    assert call("run", spec, "--id", RUN, cwd=tmp_path).code in (0, 1)
    path = store(tmp_path) / "sums" / RUN / "spec.yaml"
    path.write_bytes(SPEC_FILES[how])
    before = snapshot(store(tmp_path))
    for command in (("resume", RUN), ("run", spec, "--id", RUN), ("extend", RUN, "--set", "tasks.sums.repeats=2")):
        one_sentence(call(*command, cwd=tmp_path), 3, "spec.yaml")
    assert snapshot(store(tmp_path)) == before
    assert call("show", RUN, cwd=tmp_path).code == 0
    assert call("verify", RUN, cwd=tmp_path).code == 0


def test_a_refusal_offers_a_fork(tmp_path: Path) -> None:
    spec = write_spec(tmp_path)
    call("run", spec, "--id", RUN, cwd=tmp_path)
    other = changed(spec, seed=3)
    refused = call("run", other, "--id", RUN, cwd=tmp_path)
    one_sentence(refused, 3, "seed", f"holdfast fork {RUN} {other} --id {RUN}-2\n")
    command = refused.err.splitlines()[-1].split()
    assert call(*command[1:], cwd=tmp_path).code == 0, "it can be copied and run"
    assert f"--id {RUN}-3\n" in call("run", other, "--id", RUN, cwd=tmp_path).err


def test_a_plan_difference_names_the_samples(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, 6)
    call("run", spec, "--id", RUN, cwd=tmp_path)
    before = snapshot(store(tmp_path))
    rows = sums(9)
    cases = {
        "3 samples added (s0007, s0008, s0009)": rows,
        "2 samples removed (s0005, s0006)": rows[:4],
        "1 sample changed (s0002)": [rows[0], {**rows[1], "question": "1 + 1"}, *rows[2:6]],
        "another order": [*rows[1:6], rows[0]],
        "5 samples removed (s0001, s0002, s0003, …)": [rows[5]],
    }
    for words, data in cases.items():
        write_rows(tmp_path / "sums.jsonl", data)
        one_sentence(call("run", spec, "--id", RUN, cwd=tmp_path), 3, "tasks.sums.dataset", words)
    assert snapshot(store(tmp_path)) == before
    (tmp_path / "sums.jsonl").unlink()
    assert call("run", spec, "--id", RUN, cwd=tmp_path).code in (0, 1)
    write_rows(tmp_path / "moved.jsonl", rows[:6])
    moved = changed(
        spec, task={"dataset": {"path": "moved.jsonl", "id": "id", "input": "question", "target": "answer"}}
    )
    assert call("run", moved, "--id", RUN, cwd=tmp_path).code in (0, 1)
    assert len(shown(RUN, store(tmp_path))["resumes"]) == 1


_SHOTS = [{"question": f"{i} + 1", "answer": str(i + 1)} for i in range(50, 60)]


def few(folder: Path, server: ServerProcess, **shots: Any) -> Path:
    write_rows(folder / "shots.jsonl", _SHOTS)
    fewshot = {"path": "shots.jsonl", "n": 3, "seed": 1, **shots}
    return write_spec(folder, 4, server.base_url, task={"fewshot": fewshot, "sample_retries": 0})


def test_examples_whose_file_is_gone_are_shown_as_they_were(tmp_path: Path) -> None:
    """Byte for byte: the second half of the requests has digests that the first run of the same spec had."""
    with start_server_process() as whole:
        (tmp_path / "whole").mkdir()
        assert call("run", few(tmp_path / "whole", whole), "--id", RUN, cwd=tmp_path / "whole").code == 0
        wanted = whole.stats().by_digest
    faults = [Fault("500", first=2)]
    with start_server_process(Behaviour(faults=faults)) as server:
        spec = few(tmp_path, server)
        assert call("run", spec, "--id", RUN, "--set", "models.arith.request_retries=0", cwd=tmp_path).code == 1
        (tmp_path / "shots.jsonl").unlink()
        done = call("resume", RUN, cwd=tmp_path)
        assert done.code == 0, done.err
        stats = server.stats()
    assert set(stats.by_digest) == set(wanted)
    assert stats.requests == 6


def test_other_examples_are_refused_by_their_field(tmp_path: Path) -> None:
    with start_server_process() as server:
        spec = few(tmp_path, server)
        assert call("run", spec, "--id", RUN, cwd=tmp_path).code == 0
        write_rows(tmp_path / "shots.jsonl", _SHOTS[::-1])
        before = snapshot(store(tmp_path))
        for command in (("resume", RUN), ("run", spec, "--id", RUN)):
            one_sentence(call(*command, cwd=tmp_path), 3, "tasks.sums.fewshot")
        assert snapshot(store(tmp_path)) == before


def test_a_fork_with_another_number_of_examples_does_not_show_the_old_ones(tmp_path: Path) -> None:
    with start_server_process() as server:
        few(tmp_path, server)
        assert call("run", tmp_path / "eval.yaml", "--id", RUN, cwd=tmp_path).code == 0
        (tmp_path / "shots.jsonl").unlink()
        kept = call("fork", RUN, "--id", FORK, cwd=tmp_path)
        assert kept.code == 0, kept.err
        assert server.stats().requests == 4
        other = call("fork", RUN, "--set", "tasks.sums.fewshot.n=2", "--id", "z", cwd=tmp_path)
        one_sentence(other, 2, "shots.jsonl")
        assert server.stats().requests == 4


def test_a_fork_that_wants_rows_that_nobody_has_says_so(tmp_path: Path) -> None:
    with start_server_process() as server:
        begin(tmp_path, server, record_data=False)
        (tmp_path / "sums.jsonl").unlink()
        one_sentence(call("fork", RUN, "--id", FORK, cwd=tmp_path), 2, "sums.jsonl")
        one_sentence(call("fork", RUN, "--id", FORK, "--set", "record_data=true", cwd=tmp_path), 2, "sums.jsonl")
        assert sorted(path.name for path in (store(tmp_path) / "sums").iterdir()) == [RUN]


def test_an_escaped_variable_stays_as_it_is_when_a_stored_spec_is_changed(tmp_path: Path) -> None:
    """`$${PLACE}` in a spec means the text `${PLACE}`; what is stored is not a spec to be filled in again."""
    with start_server_process() as server:
        begin(tmp_path, server, model={"params": {"user": "$${PLACE}"}})
        wide = ("--set", "concurrency.samples=3")
        for command in (("resume", RUN, *wide), ("fork", RUN, "--id", FORK, *wide)):
            for env in ({"PLACE": "elsewhere"}, {}):
                done = call(*command, cwd=tmp_path, env=env)
                assert done.code == 0, done.err
                if FORK in command:
                    shutil.rmtree(store(tmp_path) / "sums" / FORK)
        assert server.stats().requests == 6


def test_code_of_the_solver_is_result_and_code_of_a_scorer_in_the_same_file_is_evaluation(tmp_path: Path) -> None:
    with start_server_process() as server:
        module = tmp_path / "twice.py"
        module.write_text(_TWICE)
        spec = begin(tmp_path, server, task={"solver": "twice:ask_twice", "scorers": ["twice:close"]})
        first = shown(RUN, store(tmp_path))["evaluations"]
        module.write_text(_TWICE.replace("Check it once more", "Check it twice"))
        before = snapshot(store(tmp_path))
        for command in (("resume", RUN), ("run", spec, "--id", RUN)):
            one_sentence(run(*command, cwd=tmp_path), 3, "tasks.sums.solver")
        assert snapshot(store(tmp_path)) == before
        module.write_text(_TWICE.replace("return answer.text ==", "value = 1\n    return not value or answer.text !="))
        again = run("resume", RUN, cwd=tmp_path)
        assert again.code == 0, again.err
        assert server.stats().requests == 12
    told = shown(RUN, store(tmp_path))
    assert len(told["evaluations"]) == 2
    assert told["evaluations"][0] == first[0]
    assert {line["scores"]["close"] for line in exported(RUN, store(tmp_path))} == {False}


_SCRIPT = """\
import sys
import holdfast


async def solve(sample, ctx):
    return (await ctx.generate(f"{TEXT} {{sample.input}}")).text


task = holdfast.Task("sums", data=[{{"id": "a", "input": "1 + 1", "target": "2"}}], solver=solve)
try:
    holdfast.run(task, models=[{{"name": "m", "provider": "mock"}}], id="x", store="runs")
except holdfast.DriftError as error:
    sys.exit(3)
"""


@pytest.mark.parametrize("how", ["exec", *(pytest.param(each, marks=pytest.mark.long) for each in ("script", "-c"))])
def test_a_solver_without_a_module_file_is_known_by_its_code(tmp_path: Path, how: str) -> None:
    codes: list[int] = []
    for text in ("Compute", "Compute", "Reckon"):
        source = _SCRIPT.replace("{TEXT}", text).format()
        if how == "exec":
            source = f"exec(compile({source!r}, '<cell>', 'exec'), {{'__name__': '__main__'}})"
        arguments = ["-c", source]
        if how == "script":
            (tmp_path / "script.py").write_text(f"# {len(codes)}\n" * len(codes) + source)
            arguments = ["script.py"]
        done = subprocess.run([sys.executable, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)
        codes.append(done.returncode)
        assert done.returncode in (0, 3), done.stderr
    assert codes == [0, 0, 3]


def seeds_sent(folder: Path, run_id: str) -> dict[str, list[int]]:
    lines = (folder / f"seeds-{run_id}").read_text().splitlines()
    found: dict[str, list[int]] = {}
    for line in lines:
        text, seed = json.loads(line)
        found.setdefault(text, []).append(seed)
    return {text: sorted(each) for text, each in found.items()}


_SEEDED = """\
import json
import os


async def answer(request):
    with open(os.environ["SEEDS"], "a") as file:
        file.write(json.dumps([request.messages[-1]["content"], request.params.get("seed")]) + "\\n")
    return "8"
"""


def test_per_key_seeds_depend_on_the_key_alone(tmp_path: Path) -> None:
    (tmp_path / "seeded.py").write_text(_SEEDED)
    model = {"provider": "seeded:answer", "options": {}, "params": {"seed": "per_key"}}
    spec = write_spec(tmp_path, 5, model=model, task={"repeats": 3})
    for run_id, words in (("a", []), ("b", ["--set", "concurrency.samples=1"]), ("c", ["--set", "seed=5"])):
        env = {"SEEDS": f"seeds-{run_id}"}
        assert call("run", spec, "--id", run_id, *words, cwd=tmp_path, env=env).code in (0, 1)
    first = seeds_sent(tmp_path, "a")
    every = [seed for seeds in first.values() for seed in seeds]
    assert len(every) == len(set(every)) == 15
    assert all(isinstance(seed, int) and 0 <= seed < 2**31 for seed in every)
    assert seeds_sent(tmp_path, "b") == first
    assert not set(every) & {seed for seeds in seeds_sent(tmp_path, "c").values() for seed in seeds}
    fixed = changed(spec, model={"params": {"seed": 7}})
    assert call("run", fixed, "--id", "d", cwd=tmp_path, env={"SEEDS": "seeds-d"}).code in (0, 1)
    assert {seed for seeds in seeds_sent(tmp_path, "d").values() for seed in seeds} == {7}


def test_the_help_of_each_command_says_what_it_is_for(tmp_path: Path) -> None:
    for command, word in (("fork", "reuses"), ("extend", "repeats"), ("retry", "failed"), ("resume", "--keep-failed")):
        told = call(command, "--help", cwd=tmp_path)
        assert told.code == 0
        assert re.search(word, told.out)
