"""`holdfast leaderboard` with pairwise judges: strengths with honest intervals, in every format."""

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import holdfast
from tests.e2e.commands import Done, call, run, write_rows

JUDGE = '''
"""Prefers the text with the higher number in it; equal numbers tie, and "?" cannot be judged."""
import json, re

async def judge(request):
    texts = re.findall(r"## Answer [AB]\\n<<<\\n(.*?)\\n>>>", request.messages[-1]["content"], re.DOTALL)
    if "?" in texts:
        return "I cannot say."
    first, second = (int(re.search(r"\\d+", text)[0]) for text in texts)
    better = "A" if first > second else "B" if second > first else "tie"
    return json.dumps({"reason": "compared", "better": better})
'''
SAMPLES = 30
TARGET = 50


def write(folder: Path, answers: dict[str, list[str]], scorers: Any = "pairwise", **columns: list[str]) -> Path:
    """A run of models that say these answers, one for each sample, judged against the target: always 50."""
    (folder / "bench.py").write_text(JUDGE)
    (folder / "said.py").write_text(
        "import json, pathlib, holdfast.models\n"
        "SAID = json.loads(pathlib.Path(__file__).with_name('said.json').read_text())\n"
        "def say(name):\n"
        "    async def reply(request):\n"
        "        return SAID[name][int(request.messages[-1]['content'])]\n"
        "    return reply\n" + "".join(f"m_{name} = say({name!r})\n" for name in answers)
    )
    (folder / "said.json").write_text(json.dumps(answers))
    count = len(next(iter(answers.values())))
    rows = [
        {"id": f"s{i:02d}", "q": str(i), "target": str(TARGET), **{name: texts[i] for name, texts in columns.items()}}
        for i in range(count)
    ]
    write_rows(folder / "rows.jsonl", rows)
    spec = {
        "experiment": "duels",
        "models": [{"name": name, "provider": f"said:m_{name}"} for name in answers],
        "roles": {"judge": {"provider": "bench:judge"}},
        "fail_on_error": 1000,
        "tasks": [
            {
                "name": "t",
                "dataset": {"path": "rows.jsonl"},
                "prompt": "{q}",
                "scorers": [scorers] if not isinstance(scorers, list) else scorers,
            }
        ],
    }
    path = folder / "eval.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    return path


def begin(folder: Path, name: str = "r", store: Path | None = None) -> None:
    done = run("run", "eval.yaml", "--id", name, "--store", store or folder / "runs", cwd=folder)
    assert done.code == 0, done.said


def ranked(folder: Path, *arguments: str) -> Done:
    done = call("leaderboard", *(arguments or ("r",)), "--store", folder / "runs", cwd=folder)
    assert done.code == 0, done.err
    return done


def answers(won: int, tied: int = 0, of: int = SAMPLES) -> list[str]:
    """Better than 50, equal, and worse."""
    return ["60"] * won + ["50"] * tied + ["40"] * (of - won - tied)


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("judged")
    said = {"best": answers(30), "good": answers(20, 6), "even": answers(0, 30), "bad": answers(4), "worst": answers(0)}
    write(folder, said, ["pairwise", "includes"])
    begin(folder)
    return folder


def test_models_are_ranked_by_strength_with_intervals_that_are_not_certain(judged: Path) -> None:
    found = ranked(judged, "r", "--json").json()
    (board,) = found["pairwise"]
    assert (board["task"], board["scorers"], board["anchor"], board["samples"]) == ("t", ["pairwise"], "target", 30)
    players = {each["model"]: each for each in board["players"]}
    assert [each["model"] for each in board["players"]][:2] == ["best", "good"]
    assert {name: each["rank"] for name, each in players.items()} == {
        "best": 1, "good": 2, "even": 3, "target": None, "bad": 4, "worst": 4,
    }  # fmt: skip
    best, even, worst = (players[name] for name in ("best", "even", "worst"))
    assert (best["strength"], best["high"], best["low"] > 1.5) == (None, None, True)
    assert (worst["strength"], worst["low"], worst["high"] < -1.5) == (None, None, True)
    assert (even["strength"], even["ties"], even["low"] < -0.1, even["high"] > 0.1) == (0.0, 30, True, True)
    good = players["good"]
    assert (good["wins"], good["ties"], good["losses"], round(good["share"], 4)) == (20, 6, 4, 0.7667)
    assert good["low"] < good["strength"] < good["high"]
    ranks = {each["model"]: each["rank"] for each in found["boards"][1]["ranked"]}
    assert found["boards"][1]["scorer"] == "pairwise"
    assert ranks == {name: each["rank"] for name, each in players.items() if name != "target"}


def test_the_table_names_its_method_and_what_has_no_end(judged: Path) -> None:
    told = ranked(judged).out
    rows = [line.split() for line in told.splitlines() if line.startswith("t  ")]
    assert [row[1] for row in rows] == ["includes"] * 5 + ["pairwise"] * 6, "no second row with the mean"
    assert re.search(r"t +pairwise +1  best +- +\d\.\d{4} \.\. no end +30 +0 +0", told)
    assert re.search(r"t +pairwise +target \(text\) +0\.0000 ", told)
    assert (
        "strength: Bradley-Terry, log-odds of beating the text (target), a tie is half a win; 95% intervals: " in told
    )
    assert "Bayesian bootstrap over samples (10000 resamples)" in told
    assert "t pairwise: best never lost, also not through others: its strength has no upper end" in told
    assert "t pairwise: worst never won, also not through others: its strength has no lower end" in told


def test_markdown_csv_and_python_have_the_same_numbers(judged: Path) -> None:
    (board,) = ranked(judged, "r", "--json").json()["pairwise"]
    good = next(each for each in board["players"] if each["model"] == "good")
    shown = f"{good['strength']:.4f} | {good['low']:.4f} .. {good['high']:.4f} | 20 | 6 | 4 |"
    assert f"| t | pairwise | 2 | good | {shown}" in ranked(judged, "r", "--format", "md").out
    rows = list(csv.DictReader(io.StringIO(ranked(judged, "r", "--format", "csv").out)))
    row = next(each for each in rows if (each["scorer"], each["model"]) == ("pairwise", "good"))
    assert [float(row[name]) for name in ("strength", "strength_low", "strength_high")] == [
        good["strength"], good["low"], good["high"],
    ]  # fmt: skip
    assert {each["strength"] for each in rows if each["scorer"] == "includes"} == {""}
    result = holdfast.leaderboard("r", store=str(judged / "runs"))
    assert [(each.model, each.rank) for each in result.pairwise[0].players][:2] == [("best", 1), ("good", 2)]
    assert "no end" in str(result)
    assert "Bradley-Terry" in str(result)
    assert "<td>good</td>" in result._repr_html_()
    assert "Bradley-Terry" in result._repr_html_()


def test_one_sample_says_next_to_nothing(tmp_path: Path) -> None:
    write(tmp_path, {"a": answers(1, of=1), "b": answers(0, of=1)})
    begin(tmp_path)
    (board,) = ranked(tmp_path, "r", "--json").json()["pairwise"]
    assert {each["rank"] for each in board["players"]} == {1, None}
    first = board["players"][0]
    assert (first["model"], first["strength"], first["low"] < -1.5) == ("a", None, True)


def test_several_texts_are_one_board_and_connect_models_that_met_different_ones(tmp_path: Path) -> None:
    weak, strong = ["45"] * SAMPLES, ["55"] * SAMPLES
    scorers = [
        {"pairwise": {"name": "vs_weak", "against": "weak"}},
        {"pairwise": {"name": "vs_strong", "against": "strong"}},
        {"pairwise": {"name": "other", "criteria": "Which one is kinder?"}},
    ]
    said = {"a": [*["60"] * 20, *["50"] * 6, *["40"] * 4], "b": [*["60"] * 8, *["50"] * 14, *["40"] * 8]}
    write(tmp_path, said, scorers, weak=weak, strong=strong)
    begin(tmp_path)
    found = ranked(tmp_path, "r", "--json").json()["pairwise"]
    assert [each["scorers"] for each in found] == [["vs_weak", "vs_strong"], ["other"]], "it asks another question"
    both = found[0]
    assert {each["model"] for each in both["players"]} == {"a", "b", "weak", "strong"}
    strengths = {each["model"]: each["strength"] for each in both["players"]}
    assert strengths["a"] > strengths["b"]
    assert strengths["strong"] > strengths["weak"]
    assert "vs_weak, vs_strong     1  a" in ranked(tmp_path).out
    only = ranked(tmp_path, "r", "--scorer", "vs_weak", "--json").json()["pairwise"]
    assert [each["scorers"] for each in only] == [["vs_weak"]]


def test_models_that_nothing_connects_are_not_compared(tmp_path: Path) -> None:
    store = tmp_path / "runs"
    for name, against in (("one", "target"), ("two", "other")):
        folder = tmp_path / name
        folder.mkdir()
        write(folder, {name: answers(20, 2)}, {"pairwise": {"against": against}}, other=["52"] * SAMPLES)
        begin(folder, name, store)
    done = ranked(tmp_path, "one", "two")
    assert "t pairwise: nothing connects the models of 2 tables, so these cannot be compared" in done.out
    assert done.out.count("task  scorer") == 2
    boards = ranked(tmp_path, "one", "two", "--json").json()["pairwise"]
    assert [(each["anchor"], each["part"], each["parts"]) for each in boards] == [("target", 1, 2), ("other", 2, 2)]
    assert [[each["model"] for each in board["players"] if each["run"]] for board in boards] == [["one"], ["two"]]


def test_a_verdict_that_is_missing_never_helps(tmp_path: Path) -> None:
    lazy = [*["60"] * 18, *["?"] * 12]
    busy = [*["60"] * 8, *["40"] * 10, *["60"] * 12]
    write(tmp_path, {"lazy": lazy, "busy": busy}, {"pairwise": {"ask_again": 0}})
    begin(tmp_path)
    done = ranked(tmp_path, "r", "--json")
    (board,) = done.json()["pairwise"]
    players = {each["model"]: each for each in board["players"]}
    assert (players["lazy"]["wins"], players["lazy"]["losses"], players["lazy"]["missing"]) == (18, 0, 12)
    assert (players["busy"]["wins"], players["busy"]["losses"]) == (8, 10), "only samples that both have"
    assert (players["lazy"]["rank"], players["busy"]["rank"], board["undecided"]) == (1, 1, 1)
    assert "t pairwise: 1 pair of models share a rank because of missing verdicts" in ranked(tmp_path).out


def test_a_partial_evaluation_is_ranked_on_what_it_covers_and_says_so(tmp_path: Path) -> None:
    write(tmp_path, {"a": answers(25), "b": answers(10)}, "includes")
    begin(tmp_path)
    scored = run(
        "score",
        "r",
        "--scorers",
        "pairwise",
        "--limit",
        "12",
        "--name",
        "try",
        "--store",
        tmp_path / "runs",
        cwd=tmp_path,
    )
    assert scored.code == 0, scored.said
    done = ranked(tmp_path, "r", "--evaluation", "try")
    assert "the evaluation is partial: only 24 of 60 answers are scored, chosen with --limit 12" in done.err
    (board,) = ranked(tmp_path, "r", "--evaluation", "try", "--json").json()["pairwise"]
    assert {each["wins"] + each["ties"] + each["losses"] for each in board["players"] if each["run"]} == {12}
