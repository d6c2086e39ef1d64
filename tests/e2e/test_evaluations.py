"""Evaluations of one run: what is unchanged is not made again, crashes lose nothing, and people have the last word."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from holdfast.journal import Entry, Reader
from holdfast.testing import Behaviour, start_server_process
from tests.e2e.commands import Done, call, exported, run, shown, write_spec
from tests.e2e.test_judging import RUBRIC, asked, staged, steps_of_judges

COUNTING = '''
"""Scorers that write down how often they are called."""
import os, pathlib
import holdfast

def called(name):
    with open(f"{name}.calls", "a") as file:
        file.write("x")
    at = pathlib.Path("die-at")
    if at.exists() and os.path.getsize(f"{name}.calls") >= int(at.read_text()):
        os.kill(os.getpid(), 9)

@holdfast.scorer
def steady(sample, answer):
    """Says more than fickle."""
    called("steady")
    length = holdfast.Score(len(answer.text), "counted", {"in": "letters"})
    return {"right": answer.text == sample.target, "length": length}

@holdfast.scorer
def fickle(sample, answer):
    called("fickle")
    return VALUE

@holdfast.scorer
def breaking(sample, answer):
    called("breaking")
    if not pathlib.Path("mended").exists():
        raise ValueError("not yet")
    return 1

@holdfast.scorer(group=True)
def together(sample, answers):
    called("together")
    return len(answers)
'''
KEY = "sums/arith/s0001/1"


def completed(folder: Path, rows: int = 6, **changes: Any) -> Path:
    write_spec(folder, rows, **{"fail_on_error": 100, **changes})
    assert call("run", "eval.yaml", "--id", "r", "--store", folder / "runs", cwd=folder).code == 0
    return folder / "runs"


def score(folder: Path, *more: str, value: int = 1) -> Done:
    (folder / "mine.py").write_text(COUNTING.replace("VALUE", str(value)))
    how = run if (folder / "die-at").exists() else call
    return how("score", "r", "--scorers", "mine.py", "--store", folder / "runs", *more, cwd=folder)


def edit(folder: Path, assignment: str, *more: str, key: str = KEY, reason: str = "read it") -> Done:
    options = ("--reason", reason, "--store", str(folder / "runs"), *more)
    return call("score", "r", "--set", key, assignment, *options, cwd=folder, env={"USER": "ann"})


def calls(folder: Path) -> dict[str, int]:
    return {path.stem: path.stat().st_size for path in folder.glob("*.calls")}


def scores_in(store: Path) -> Counter[tuple[str, str, str]]:
    """How often each evaluation's scorers were recorded for each key."""
    (journal,) = store.rglob("journal")
    found: Counter[tuple[str, str, str]] = Counter()
    for entry in Reader(str(journal)).read():
        if isinstance(entry, Entry) and entry.line.t == "score":
            data = json.loads(bytes(entry.line.d))
            found[data["evaluation"], entry.line.k or "", data["scorer"]] += "author" not in data
    return found


def test_changing_one_scorer_of_a_file_calls_only_that_one_and_what_had_failed(tmp_path: Path) -> None:
    store = completed(tmp_path)
    assert score(tmp_path).code == 0
    assert calls(tmp_path) == {"steady": 6, "fickle": 6, "breaking": 6, "together": 6}
    before = exported("r", store)
    (tmp_path / "mended").touch()
    done = score(tmp_path, "--name", "second", value=2)
    assert done.code == 0, done.err
    assert "6 answers scored; 12 scores of unchanged scorers copied; no request was sent" in done.err
    assert calls(tmp_path) == {"steady": 6, "fickle": 12, "breaking": 12, "together": 12}
    after = exported("r", store)
    for was, now in zip(before, after, strict=True):
        assert now["scores"] == {**was["scores"], "fickle": 2, "breaking": 1}
        assert now["reasons"] == was["reasons"]
    (metadata,) = {json.dumps(each) for each in story_scores(store, "steady.length", "metadata")}
    assert metadata == '{"in": "letters"}'
    assert score(tmp_path).code == 0
    assert calls(tmp_path)["fickle"] == 12, "the first evaluation is still there"


def story_scores(store: Path, scorer: str, field: str) -> list[Any]:
    told = call("show", "r", KEY, "--store", store, "--json", cwd=store).json()
    return [each[field] for each in told["scores"] if each["scorer"] == scorer]


def test_a_run_that_continues_with_another_scorer_takes_the_others_over(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(COUNTING.replace("VALUE", "1"))
    store = completed(tmp_path, task={"scorers": ["mine:steady"]})
    spec = (tmp_path / "eval.yaml").read_text()
    (tmp_path / "eval.yaml").write_text(spec.replace("- mine:steady", "- mine:steady\n  - mine:fickle"))
    done = run("run", "eval.yaml", "--id", "r", "--store", store, cwd=tmp_path)
    assert done.code == 0, done.err
    assert calls(tmp_path) == {"steady": 6, "fickle": 6}
    assert shown("r", store)["steps"]["live"] == 6


def test_a_judge_is_not_asked_again_unless_it_is_another(tmp_path: Path) -> None:
    store = staged(tmp_path, task={"scorers": [RUBRIC]})
    again = ("run", "eval.yaml", "--id", "r", "--store", store)
    assert run(*again, cwd=tmp_path).code == 0
    assert len(asked(tmp_path)) == 6
    for scorers in ([RUBRIC, "numeric"], [{"includes": {}}, RUBRIC]):
        staged(tmp_path, task={"scorers": scorers})
        assert run(*again, cwd=tmp_path).code == 0
    assert len(asked(tmp_path)) == 6, "the scores of an unchanged judge are taken over"
    roles = {"judge": {"provider": "bench:judge"}, "second": {"provider": "bench:judge"}}
    staged(tmp_path, task={"scorers": [RUBRIC]}, roles=roles)
    assert run(*again, cwd=tmp_path).code == 0
    assert len(asked(tmp_path)) == 6, "a role that the scorer does not ask is none of its business"
    roles["judge"] = {"provider": "bench:judge", "params": {"temperature": 1}}  # type: ignore[dict-item]
    staged(tmp_path, task={"scorers": [RUBRIC, "numeric"]}, roles=roles)
    assert run(*again, cwd=tmp_path).code == 0
    assert len(asked(tmp_path)) == 12
    assert [each["scores"]["rubric"] for each in exported("r", store)] == [4.0] * 6


def test_scoring_with_judges_says_how_many_requests_it_made_and_what_they_cost(tmp_path: Path) -> None:
    price = {"input": 0, "output": 0, "request": 0.25}
    staged(tmp_path, roles={"judge": {"provider": "bench:judge", "price": price}}, task={"scorers": ["numeric"]})
    store = completed_judged(tmp_path)
    spec = (tmp_path / "eval.yaml").read_text()
    assert "numeric" in spec
    (tmp_path / "own.py").write_text(
        "import holdfast\n\n@holdfast.scorer\nasync def verdict(sample, answer, ctx):\n"
        "    return len((await ctx.generate('?', role='judge')).text)\n"
    )
    done = run("score", "r", "--scorers", "own.py", "--store", store, cwd=tmp_path)
    assert "6 requests to judges ($1.50); the evaluated models were not called" in done.err, done.said
    again = run("score", "r", "--scorers", "own.py", "--scorers", "includes", "--store", store, cwd=tmp_path)
    assert "6 scores of unchanged scorers copied; no request was sent" in again.err, again.said


def completed_judged(folder: Path) -> Path:
    assert run("run", "eval.yaml", "--id", "r", "--store", folder / "runs", cwd=folder).code == 0
    return folder / "runs"


def test_scoring_sends_no_request_even_where_the_model_is_gone(tmp_path: Path) -> None:
    with start_server_process(Behaviour()) as server:
        write_spec(tmp_path, 6, server.base_url, fail_on_error=100)
        assert call("run", "eval.yaml", "--id", "r", "--store", tmp_path / "runs", cwd=tmp_path).code == 0
    done = score(tmp_path)  # nobody listens there any more
    assert done.code == 0, done.err
    assert "6 answers scored; no request was sent" in done.err
    assert shown("r", tmp_path / "runs")["steps"]["live"] == 6


@pytest.mark.parametrize("moment", [1, 4, 8])
def test_scoring_killed_at_any_call_scores_every_answer_once_in_the_end(tmp_path: Path, moment: int) -> None:
    store = completed(tmp_path, 8)
    (tmp_path / "mended").touch()
    assert score(tmp_path).code == 0
    done = {name: count for name, count in calls(tmp_path).items() if name == "steady"}
    for path in tmp_path.glob("*.calls"):
        path.unlink()
    (tmp_path / "die-at").write_text(str(moment))
    assert score(tmp_path, value=2).code == -9
    (tmp_path / "die-at").unlink()
    assert score(tmp_path, value=2).code == 0
    assert done == {"steady": 8}
    assert "steady" not in calls(tmp_path), "what is taken over is not called after a crash either"
    newest = shown("r", store)["evaluations"][-1]
    assert [each["scores"]["fickle"] for each in exported("r", store)] == [2] * 8
    recorded = Counter(key for (evaluation, key, scorer), _ in scores_in(store).items() if evaluation == newest)
    assert set(recorded.values()) == {5}, "two of steady, and one of each of the others"
    report = call("report", "r", "--store", store, "--json", cwd=tmp_path).json()
    assert {each["summary"]["n"] for cell in report["cells"] for each in cell["scorers"]} == {8}


@pytest.mark.parametrize("moment", [1, 3, 6])
def test_scoring_killed_while_judges_are_asked_pays_for_no_verdict_twice(tmp_path: Path, moment: int) -> None:
    staged(tmp_path, task={"scorers": ["numeric"]})
    store = completed_judged(tmp_path)
    (tmp_path / "own.py").write_text(
        "import holdfast\n\n@holdfast.scorer\nasync def verdict(sample, answer, ctx):\n"
        "    said = await ctx.generate(f'Is it right of {sample.id}?', role='judge')\n"
        "    return said.json()['criterion']['score']\n"
    )
    command = ("score", "r", "--scorers", "own.py", "--store", store)
    (tmp_path / "die-at").write_text(str(moment))
    assert run(*command, cwd=tmp_path).code == -9
    (tmp_path / "die-at").unlink()
    before = {each["asked"]["new"][-1]["content"] for each in steps_of_judges(store) if "answer" in each}
    first = len(asked(tmp_path))
    done = run(*command, cwd=tmp_path)
    assert done.code == 0, done.err
    again = {json.loads(line)[-1]["content"] for line in asked(tmp_path)[first:]}
    assert not before & again, "a verdict that was recorded was asked for again"
    assert [each["scores"]["verdict"] for each in exported("r", store)] == [4] * 6
    assert shown("r", store)["status"] == "completed"


def test_evaluations_are_listed_with_their_counts_and_found_by_name_everywhere(tmp_path: Path) -> None:
    store = completed(tmp_path)
    assert score(tmp_path, "--name", "first").code == 0
    assert score(tmp_path, "--name", "second", value=2).code == 0
    listed = call("score", "r", "--list", "--json", "--store", store, cwd=tmp_path).json()
    assert [(each["name"], each["current"]) for each in listed] == [("", False), ("first", False), ("second", True)]
    assert listed[1]["scorers"] == ["steady", "fickle", "breaking", "together"]
    assert listed[1]["begun"] < listed[2]["begun"]
    assert listed[1]["counts"] == {
        "answers": 6, "scored": 24, "no_score": 0, "failures": 6, "edited": 0, "taken": 0,
    }  # fmt: skip
    assert listed[2]["counts"]["taken"] == 12
    table = call("score", "r", "--list", "--store", store, cwd=tmp_path).out
    assert "second" in table
    assert table.count("current") == 1

    def values(*words: str) -> str:
        return call(*words, "--evaluation", "first", "--store", store, cwd=tmp_path).out

    assert '"fickle":1' in values("export", "r").splitlines()[0]
    assert "fickle" in values("export", "r", "--format", "csv").splitlines()[0]
    assert "fickle: 1\n" in values("show", "r", KEY)
    told = json.loads(values("show", "r", "--json"))
    assert [each["mean"] for each in told["scores"] if each["scorer"] == "fickle"] == [1.0]
    assert "fickle" in values("report", "r")
    assert score(tmp_path, "--name", "renamed", value=2).code == 0
    assert "renamed" in call("score", "r", "--list", "--store", store, cwd=tmp_path).out
    assert score(tmp_path, value=2).code == 0
    assert "renamed" in call("score", "r", "--list", "--store", store, cwd=tmp_path).out, "a name stays"


def test_a_score_set_by_hand_counts_and_keeps_its_history_whatever_comes_after(tmp_path: Path) -> None:
    store = completed(tmp_path)
    assert score(tmp_path).code == 0
    assert edit(tmp_path, "steady.right=false", reason="it guessed").code == 0
    assert edit(tmp_path, "steady.right=true", "--by", "bob", reason="no, it did not").code == 0
    assert edit(tmp_path, "breaking=0.5", key="sums/arith/s0002/1").code == 0
    assert score(tmp_path, value=2).code == 0
    first = exported("r", store)[0]
    assert first["scores"]["steady.right"] is True
    history = first["scores_edited"]["steady.right"]
    assert [(each["value"], each.get("author")) for each in history] == [(True, None), (False, "ann"), (True, "bob")]
    assert history[1]["at"] < history[2]["at"]
    second = exported("r", store)[1]
    assert second["scores"]["breaking"] == 0.5, "the scorer broke again, and the hand still counts"
    assert "failure" in json.dumps(second["scores_edited"]["breaking"][0])
    report = call("report", "r", "--store", store, cwd=tmp_path)
    assert "2 scores edited by hand" in report.out
    assert "2 scores edited by hand" in call("report", "r", "--format", "markdown", "--store", store, cwd=tmp_path).out
    told = call("show", "r", KEY, "--store", store, cwd=tmp_path).out
    assert "steady.right: True, replaced by hand" in told
    assert "set by hand by ann at 20" in told
    assert "it guessed), replaced by hand" in told
    assert told.rstrip().endswith(": no, it did not)")
    assert call("run", "eval.yaml", "--id", "r", "--store", store, cwd=tmp_path).code == 0
    assert score(tmp_path).code == 0
    assert exported("r", store)[0]["scores_edited"]["steady.right"][-1]["author"] == "bob"


@pytest.mark.parametrize(
    ("key", "assignment", "more", "said"),
    [
        ("sums/arith/s0009/1", "numeric=1", (), "r has no key 'sums/arith/s0009/1'; did you mean"),
        (KEY, "numerc=1", (), f"{KEY} has no score of 'numerc' in the evaluation"),
        (KEY, "numeric=good", (), "numeric gives right or wrong; write true, false, or null for no score"),
        (KEY, "numeric=inf", (), "a score must be finite"),
        (KEY, "numeric", (), "write SCORER=VALUE"),
        (KEY, "numeric=1", ("--evaluation", "nothing"), "r has no evaluation 'nothing'"),
        (KEY, "numeric=1", ("--reason", " "), "--reason is missing"),
        (KEY, "numeric=1", ("--list",), "one at a time"),
    ],
)
def test_an_edit_that_cannot_be_meant_is_refused_in_one_sentence(
    tmp_path: Path, key: str, assignment: str, more: tuple[str, ...], said: str
) -> None:
    store = completed(tmp_path)
    before = exported("r", store)
    done = edit(tmp_path, assignment, *more, key=key)
    assert (done.code, said in done.err) == (2, True), done.said
    assert done.err.count("\n") == 1
    assert exported("r", store) == before
