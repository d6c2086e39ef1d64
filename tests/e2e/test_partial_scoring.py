"""Trying a judge on a part of the answers: what is chosen, what is recorded, and that nothing is paid for twice."""

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

import holdfast
from holdfast.records import Message
from holdfast.testing import BatchBehaviour, Behaviour, ModelServer, start_server_process
from tests.e2e.agents import serving
from tests.e2e.commands import Done, call, exported, finish, run, shown, start, wait_until, write_spec
from tests.e2e.test_judging import steps_of_judges

RUBRIC = {"rubric": {"criteria": "It is right."}}
PAIRWISE = {"pairwise": {"criteria": "Which is better?"}}


def verdict(messages: list[Message]) -> str:
    """A grade of 5 for the first sample, else 4; and the first of two texts is better."""
    grade = 5 if "1 + 7" in str(messages[-1]["content"]).splitlines() else 4
    reason = "it is as good as it can be"
    return json.dumps({"criterion": {"reason": reason, "score": grade}, "better": "A", "reason": reason})


@contextmanager
def judged(folder: Path, rows: int = 12, latency: float = 0.0, **changes: Any) -> Iterator[ModelServer]:
    """A completed run, a file with a judge, and the judge's server."""
    write_spec(folder, rows, **changes)
    assert call("run", "eval.yaml", "--id", "r", "--store", folder / "runs", cwd=folder).code == 0
    with serving(verdict, latency) as server:
        write_scorers(folder, server.base_url)
        yield server


def write_scorers(folder: Path, base_url: str, scorer: Any = RUBRIC, **fields: Any) -> None:
    role = {"provider": "openai", "model": "judge-1", "base_url": base_url, **fields}
    (folder / "judge.yaml").write_text(yaml.safe_dump({"scorers": [scorer], "roles": {"judge": role}}))


def score(folder: Path, *more: str, scorers: str = "judge.yaml") -> Done:
    return call("score", "r", "--scorers", scorers, "--store", folder / "runs", *more, cwd=folder)


def report(folder: Path, *more: str) -> Done:
    return call("report", "r", "--store", folder / "runs", *more, cwd=folder)


def evaluations(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = call("score", "r", "--list", "--json", "--store", folder / "runs", cwd=folder).json()
    return found


def scored_samples(folder: Path, evaluation: str) -> list[str]:
    done = call("export", "r", "--evaluation", evaluation, "--store", folder / "runs", cwd=folder)
    lines = [json.loads(line) for line in done.out.splitlines()]
    return [line["sample_id"] for line in lines if line["scores"]]


def test_a_part_says_so_everywhere_and_the_rest_is_scored_without_paying_twice(tmp_path: Path) -> None:
    with judged(tmp_path) as server:
        done = score(tmp_path, "--limit", "5")
        assert done.code == 0, done.said
        assert server.stats().requests == 5
        assert "5 answers chosen: 5 scored now; 5 requests to judges" in done.err
        assert "partial: only 5 of 12 answers are scored in this evaluation (chosen with --limit 5)" in done.out
        first = done.out.partition("sums/arith/s0001/1\n")[2].splitlines()[:4]
        assert first == [
            "  question: 1 + 7",
            "  target: 8",
            "  answer: 8",
            "  rubric: 5.0, it is as good as it can be",
        ]
        whole, part = evaluations(tmp_path)
        assert (whole["current"], whole["partial"]) == (True, False)
        assert (part["current"], part["partial"], part["counts"]["answers"], part["finished"]) == (False, True, 5, 12)
        assert (
            "partial: 5 of 12 answers" in call("score", "r", "--list", "--store", tmp_path / "runs", cwd=tmp_path).out
        )
        assert "rubric" not in report(tmp_path).out.replace("judge=openai/judge-1", ""), "numeric is still current"
        shown_part = report(tmp_path, "--evaluation", part["evaluation"], "--json").json()
        assert shown_part["partial"] == {"scored": 5, "answers": 12, "chosen": ["--limit 5"]}
        (scorer,) = shown_part["cells"][0]["scorers"]
        assert (scorer["summary"]["n"], scorer["missing"]) == (5, {"not_scored": 7})
        for form in ("markdown", "html", "latex", "junit"):
            written = report(tmp_path, "--evaluation", part["evaluation"], "--format", form).out
            assert "only 5 of 12 answers are scored" in written, form
        junit = report(tmp_path, "--evaluation", part["evaluation"], "--format", "junit").out
        assert junit.count("not scored") == 7 + 1, "seven cases are skipped, and a note counts them"
        assert "(partial)" in call("show", "r", "--store", tmp_path / "runs", cwd=tmp_path).out
        # The same part again, and one that overlaps with it.
        assert "5 answers chosen: 0 scored now, 5 before; no request was sent" in score(tmp_path, "--limit", "5").err
        done = score(tmp_path, "--sample", "s0002", "--sample", "s0007")
        assert "2 answers chosen: 1 scored now, 1 before; 1 request to judges" in done.err
        assert scored_samples(tmp_path, part["evaluation"]) == ["s0001", "s0002", "s0003", "s0004", "s0005", "s0007"]
        assert server.stats().requests == 6
        done = score(tmp_path)
        assert "12 answers" not in done.err
        assert "6 answers scored; 6 requests to judges" in done.err
        assert set(server.stats().by_digest.values()) == {1}, "an answer of the judge was paid for twice"
    _, now = evaluations(tmp_path)
    assert (now["evaluation"], now["current"], now["partial"]) == (part["evaluation"], True, False)
    assert report(tmp_path, "--json").json()["partial"] is None
    assert [each["scores"]["rubric"] for each in exported("r", tmp_path / "runs")] == [5.0] + [4.0] * 11
    # A part that leaves nothing out is the whole.
    assert "12 answers chosen: 0 scored now, 12 before" in score(tmp_path, "--limit", "12").err
    assert [each["partial"] for each in evaluations(tmp_path)] == [False, False]


@pytest.mark.parametrize("answered", [7, *(pytest.param(each, marks=pytest.mark.long) for each in (1, 4))])
def test_a_part_killed_while_it_is_scored_pays_for_no_verdict_twice(tmp_path: Path, answered: int) -> None:
    """Two requests for each answer, one at a time: an odd number is a kill in the middle of one answer."""
    other = {"options": {"reply": "I do not know."}}  # no answer is its target: the two orders differ
    with judged(tmp_path, 8, latency=0.05, model=other) as server:
        write_scorers(tmp_path, server.base_url, PAIRWISE, max_connections=1, adaptive=False)
        store = tmp_path / "runs"
        command = ("score", "r", "--scorers", "judge.yaml", "--store", store)
        with start(*command, "--limit", "5", cwd=tmp_path) as process:
            assert wait_until(lambda: server.stats().requests > answered, process), finish(process).err
            finish(process, signal.SIGKILL)
        before = Counter(server.stats().by_digest)
        recorded = {contents(each) for each in steps_of_judges(store) if "answer" in each}
        assert len(recorded) >= answered - 1, "one may have arrived and not be on disk yet"
        (_, part) = evaluations(tmp_path)
        assert (part["partial"], part["current"]) == (True, False)
        done = run(*command, cwd=tmp_path)
        assert done.code == 0, done.said
        after = Counter(server.stats().by_digest)
        repeated = [digest for digest, count in after.items() if count > 1]
        assert len(repeated) <= 2, "more was sent again than was under way at the kill"
        assert set(before.values()) == {1}
        assert sum(after.values()) - sum(before.values()) == 2 * 8 - len(recorded), "a recorded verdict was sent again"
        assert set(Counter(map(contents, answers_of(store))).values()) == {1}
    assert [each["scores"]["pairwise"] for each in exported("r", store)] == [0.5] * 8
    assert [(each["current"], each["partial"]) for each in evaluations(tmp_path)] == [(False, False), (True, False)]


def answers_of(store: Path) -> list[dict[str, Any]]:
    return [each for each in steps_of_judges(store) if "answer" in each]


def contents(step: dict[str, Any]) -> str:
    return json.dumps(step["asked"]["new"])


VERDICT = (
    "import holdfast\n\n@holdfast.scorer\nasync def verdict(sample, answer, ctx):\n"
    "    return len((await ctx.generate(f'{sample.input}', role='judge')).text)\n"
)


def test_a_job_of_a_judge_that_a_killed_part_left_at_the_server_is_collected(tmp_path: Path) -> None:
    write_spec(tmp_path, 6)
    store = tmp_path / "runs"
    assert call("run", "eval.yaml", "--id", "r", "--store", store, cwd=tmp_path).code == 0
    (tmp_path / "mine.py").write_text(VERDICT)
    with start_server_process(Behaviour(batch=BatchBehaviour(polls=40))) as server:
        batch = {"quiet_seconds": 0.2, "poll_seconds": 0.05, "settle_seconds": 0.3}
        role = {"provider": "openai", "model": "judge-1", "base_url": server.base_url, "batch": batch}
        options = ("--scorers", "mine.py", "--role", f"judge={json.dumps(role)}", "--store", store)
        with start("score", "r", *options, "--limit", "4", cwd=tmp_path) as process:
            assert wait_until(lambda: bool(server.batches().jobs and any(shown("r", store)["jobs"])), process)
            finish(process, signal.SIGKILL)
        done = run("score", "r", *options, cwd=tmp_path)
        assert done.code == 0, done.said
        assert set(server.batches().by_digest.values()) == {1}
        assert sum(server.batches().by_digest.values()) == 6
    assert len(scored_samples(tmp_path, "")) == 6


def test_each_model_of_a_judge_is_an_evaluation_with_costs_of_its_own(tmp_path: Path) -> None:
    own = {"provider": "mock", "price": {"input": 0, "output": 0, "request": 1.0}}
    own["options"] = {"reply": '{"criterion": {"reason": "mine", "score": 2}}'}
    with judged(tmp_path, 4, roles={"judge": own}) as server:
        (tmp_path / "plain.yaml").write_text(yaml.safe_dump([RUBRIC]))
        role = {"provider": "openai", "base_url": server.base_url, "price": {"input": 0, "output": 0, "request": 0.25}}
        for name in ("one", "two"):
            given = f"judge={json.dumps({**role, 'model': name})}"
            done = score(tmp_path, "--limit", "2", "--role", given, scorers="plain.yaml")
            assert "2 requests to judges ($0.5000)" in done.err, done.said
        assert "3 requests to judges ($3.00)" in score(tmp_path, "--limit", "3", scorers="plain.yaml").err
        assert server.stats().requests == 4
    assert [each["counts"]["answers"] for each in evaluations(tmp_path)] == [4, 2, 2, 3]
    costs = call("cost", "r", "--json", "--store", tmp_path / "runs", cwd=tmp_path).json()
    assert {line["role"]: line["cost"]["dollars"] for line in costs["lines"] if line["role"]} == {
        "judge": 3.0,
        "judge=openai/one": 0.5,
        "judge=openai/two": 0.5,
    }
    estimate = call("cost", "eval.yaml", "--json", "--store", tmp_path / "runs", cwd=tmp_path).json()
    assert "judge=openai" not in json.dumps(estimate), "a judge that was only tried is no part of the next run"
    one, two = (each["evaluation"] for each in evaluations(tmp_path)[1:3])
    assert "judge=openai/one (role)" in report(tmp_path, "--evaluation", one).out
    assert "judge=openai/one (role)" not in report(tmp_path, "--evaluation", two).out
    story = call("show", "r", "sums/arith/s0001/1", "--json", "--store", tmp_path / "runs", cwd=tmp_path).json()
    assert [step["dollars"] for each in story["judgings"] for step in each["told"]["steps"]] == [0.25, 0.25, 1.0]


def test_a_budget_counts_what_judges_of_other_evaluations_cost(tmp_path: Path) -> None:
    price = {"input": 0, "output": 0, "request": 1.0}
    free = {"price": {"input": 0, "output": 0}}
    with judged(tmp_path, 6, model=free, limits={"run": {"cost_usd": 5.0}}) as server:
        for name in ("one", "two"):
            write_scorers(tmp_path, server.base_url, model=name, price=price)
            done = score(tmp_path, "--limit", "3")
        assert done.code == 6, done.said
        assert "limits.run.cost_usd is 5, and $5.0000 is used" in done.err
        assert server.stats().requests == 5


def test_wrong_answers_are_those_below_the_best_of_the_first_scorer(tmp_path: Path) -> None:
    models = [
        {"name": "eight", "provider": "mock", "options": {"reply": "8"}},
        {"name": "sixteen", "provider": "mock", "options": {"reply": "16"}},
    ]
    with judged(tmp_path, 4, models=models) as server:
        done = score(tmp_path, "--wrong", "--limit", "2")  # s0001 is right for `eight`, s0002 for `sixteen`
        assert "2 answers chosen, wrong by numeric: 2 scored now" in done.err, done.said
        shown = done.out.partition("sums/eight/s0002/1\n")[2].partition("sums/sixteen/s0001/1\n")
        assert ["  rubric: 4.0" in shown[0], "  rubric: 5.0" in shown[2]] == [True, True]
        assert "6 answers chosen, wrong by numeric: 4 scored now, 2 before" in score(tmp_path, "--wrong").err
        assert "2 answers scored" in score(tmp_path).err
        assert server.stats().requests == 8
        # Now rubric is current: 4 of 5 is below the best.
        (tmp_path / "exact.yaml").write_text("[exact_match]")
        done = score(tmp_path, "--wrong", scorers="exact.yaml")
        assert "6 answers chosen, wrong by rubric: 6 scored now" in done.err, done.said
    done = score(tmp_path, "--wrong", "--sample", "s0001", scorers="exact.yaml")
    assert (done.code, done.err) == (0, "no answer is wrong by rubric, so there is nothing to score\n")
    assert len(evaluations(tmp_path)) == 3


def test_scorers_of_groups_get_whole_samples(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import holdfast\n\n@holdfast.scorer(group=True)\ndef together(sample, answers):\n    return len(answers)\n"
    )
    replies = {"provider": "mock", "options": {"reply": ["8", "9", "24"]}}
    with judged(tmp_path, 3, model=replies, task={"scorers": ["numeric"], "repeats": 3}):
        done = score(tmp_path, "--wrong", "--limit", "1", scorers="mine.py")
        assert "3 answers chosen, wrong by numeric: 3 scored now" in done.err, done.said
        assert "  together: 3" in done.out


def test_a_line_that_the_message_about_a_role_shows_is_all_that_is_missing(tmp_path: Path) -> None:
    with judged(tmp_path, 2):
        (tmp_path / "plain.yaml").write_text(yaml.safe_dump({"scorers": [RUBRIC]}))
        done = score(tmp_path, "--limit", "1", scorers="plain.yaml")
        assert done.code == 2
        line = "roles: {judge: openai/MODEL}"
        assert done.err == (
            "holdfast: --scorers: rubric calls the role 'judge', which has no model; add --role judge=openai/MODEL, or "
            f"write into plain.yaml the line `{line}`, beside `scorers:` with the list of scorers\n"
        )
        with (tmp_path / "plain.yaml").open("a") as file:
            file.write(line.replace("openai/MODEL", "mock") + "\n")
        done = score(tmp_path, "--limit", "1", scorers="plain.yaml")
        assert "rubric failed on 1 answer" in done.out, "it calls mock, which says no JSON"
        missing = score(tmp_path, "--limit", "1", "--role", "judge=openai/x", scorers="plain.yaml")
        assert (missing.code, "OPENAI_API_KEY is not set" in missing.err) == (2, True), missing.said


@pytest.fixture(scope="module")
def refusing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, ModelServer]]:
    """A run, and a judge that is never called."""
    folder = tmp_path_factory.mktemp("refusing")
    with judged(folder, 4) as server:
        yield folder, server


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--limit", "0"), "--limit 0: at least 1"),
        (("--sample", "s0044"), "--sample s0044: r has no such sample; did you mean 's0004'?"),
        (("--sample", "ünknown"), "--sample ünknown: r has no such sample; ids look like 's0001'"),
        (("--role", "judge"), "--role judge: write ROLE=PROVIDER/MODEL, for example --role judge=openai/gpt-x"),
        (("--role", "=mock"), "--role =mock: write ROLE=PROVIDER/MODEL"),
        (("--role", "judge=gpt-x"), "--role judge=gpt-x: write ROLE=PROVIDER/MODEL"),
        (("--role", "judge=[mock]"), "--role judge=[mock]: write ROLE=PROVIDER/MODEL"),
        (("--role", "judge=mock", "--role", "judge=mock/x"), "--role judge is given twice; a role has one model"),
        (("--role", "jugde=mock"), "--role jugde: no scorer calls this role; did you mean 'judge'?"),
        (("--role", "judge=opnai/x"), "did you mean 'openai'?"),
        (("--role", "judge={provider: mock, modle: x}"), "--role judge: unknown field 'modle'; did you mean 'model'?"),
        (("--limit", "1", "--list"), "one at a time"),
        (("--wrong", "--watch"), "--watch takes no --limit, --sample, --wrong or --role"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_sentence(
    refusing: tuple[Path, ModelServer], options: tuple[str, ...], said: str
) -> None:
    folder, server = refusing
    done = score(folder, *options)
    assert (done.code, said in done.err) == (2, True), done.said
    assert done.err.count("\n") == 1
    assert server.stats().requests == 0
    assert len(evaluations(folder)) == 1


def test_wrong_needs_scores_with_a_best_value(tmp_path: Path) -> None:
    with judged(tmp_path, 2, task={"scorers": []}):
        done = score(tmp_path, "--wrong")
        assert done.code == 2
        assert "--wrong chooses by scores, and r has none yet: holdfast score r" in done.err
        part = score(tmp_path, "--limit", "1")
        assert part.code == 0
        assert "only chosen answers are scored; see --evaluation" in report(tmp_path).out
        assert call("score", "r", "--scorers", "length", "--store", tmp_path / "runs", cwd=tmp_path).code == 0
        done = score(tmp_path, "--wrong")
        assert (done.code, "no scorer of task sums in r has a best score (there is: length)" in done.err) == (2, True)
        assert score(tmp_path, "--role", "judge=mock", scorers="length").err == (
            "holdfast: --role judge: no scorer calls a model\n"
        )


def test_comparisons_and_gates_of_a_part_say_so(tmp_path: Path) -> None:
    models = [{"name": name, "provider": "mock", "options": {"reply": name}} for name in ("8", "16")]
    with judged(tmp_path, 6, models=models):
        assert score(tmp_path, "--limit", "4", "--name", "try").code == 0
    options = ("--evaluation", "try", "--store", tmp_path / "runs")
    said = "the evaluation is partial: only 8 of 12 answers are scored, chosen with --limit 4"
    for command in (("compare", "r"), ("leaderboard", "r")):
        done = call(*command, *options, cwd=tmp_path)
        assert (done.code, said in done.err) == (0, True), done.said
    gate = call("gate", "r", "--at-least", "1", *options, cwd=tmp_path)
    assert (gate.code, said in gate.said) == (7, True), gate.said


def test_a_judge_shows_its_scale_beside_its_mean(tmp_path: Path) -> None:
    with judged(tmp_path, 4, task={"scorers": ["numeric"], "repeats": 2, "reduce": ["mean", "pass@2"]}):
        done = score(tmp_path)
    row = next(line for line in done.out.splitlines() if line.startswith("sums  arith  rubric"))
    assert "4.2500 (of 1 to 5)" in row
    passed = next(line for line in done.out.splitlines() if "rubric pass@2" in line)
    assert "(of" not in passed, "a chance"
    assert "4.2500 (of 1 to 5)" in report(tmp_path).out
    assert "4.2500 (of 1 to 5)" in report(tmp_path, "--format", "markdown").out
    assert "$4.2500$ (of 1 to 5)" in report(tmp_path, "--format", "latex").out
    told = call("show", "r", "--store", tmp_path / "runs", cwd=tmp_path).out
    assert "sums / arith / rubric: 4.2500 (of 1 to 5, n 8)" in told
    assert [each["scale"] for each in shown("r", tmp_path / "runs")["scores"]] == [[1.0, 5.0]]


def test_python_chooses_as_the_command_does(tmp_path: Path) -> None:
    store = str(tmp_path / "runs")
    with judged(tmp_path, 6) as server:
        role = {"provider": "openai", "model": "judge-1", "base_url": server.base_url}
        with holdfast.open_run("r", store=store) as opened:
            part = opened.score([RUBRIC], limit=2, roles={"judge": role})
            assert part.partial is not None
            assert (part.partial.scored, part.partial.answers) == (2, 6)
            assert opened.report().partial is None
            again = asyncio.run(opened.score_async(RUBRIC, samples=["s0002", "s0003"], roles={"judge": role}))
            assert again.partial is not None
            assert again.partial.chosen == ("--limit 2", "--sample s0002 --sample s0003")
            with pytest.raises(holdfast.errors.UsageError, match=r"^samples s9: r has no such sample"):
                opened.score(RUBRIC, samples=["s9"], roles={"judge": role})
            with pytest.raises(holdfast.errors.UsageError, match=r"^limit=0: at least 1"):
                opened.score(RUBRIC, limit=0)
            with pytest.raises(holdfast.errors.SpecError, match=r"add roles=\{'judge': 'openai/MODEL'\}"):
                opened.score(RUBRIC, limit=1)
            with pytest.raises(holdfast.errors.UsageError, match=r"^roles jugde: no scorer calls this role"):
                opened.score(RUBRIC, roles={"jugde": role})
            for wrong_type in ({"limit": "5"}, {"samples": "s1"}, {"roles": "judge=mock"}):
                with pytest.raises(holdfast.errors.UsageError, match=next(iter(wrong_type))):
                    opened.score(RUBRIC, **wrong_type)  # type: ignore[arg-type]  # that is the point
            with pytest.raises(TypeError, match=r"score\(\) has no argument 'wrogn'"):
                opened.score(RUBRIC, wrogn=True)  # type: ignore[call-arg]  # that is the point
        assert server.stats().requests == 3
        assert "3 answers scored; 3 requests to judges" in score(tmp_path).err, "the command continues it"
        with holdfast.open_run("r", store=store) as opened:
            wrong = opened.score("exact_match", wrong=True).partial
            assert wrong is not None
            assert wrong.scored == 5, "all but the first are wrong by rubric"
