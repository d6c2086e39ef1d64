"""Compare, leaderboard and history over HTTP: the numbers of the commands, and the samples behind every number."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.commands import call, exported
from tests.e2e.view.served import Served, links_in, query_of, serving

HOSTILE = "<script>alert('x')</script>"
SAMPLES = 45
SOLVERS = '''\
"""Models of these runs answer by their solver: right or wrong by the number of the sample."""

async def steady(sample, ctx):
    number = int(sample.id[1:])
    wrong = number % 3 == 0 if (await ctx.generate()).text == "1" else number % 2 == 0
    return f"I think that it is {'no idea <b>at all</b>' if wrong else sample.target}"

async def shifted(sample, ctx):
    number = int(sample.id[1:])
    wrong = number % 5 == 0 if (await ctx.generate()).text == "1" else number % 2 == 0
    return f"I think that the answer is {'nothing <img src=x onerror=alert(1)>' if wrong else sample.target}"

def length(sample, answer):
    return (100 * len(answer.text) + int(sample.id[1:])) / 7
'''


def write(folder: Path, solver: str, experiment: str = "sums", **changes: Any) -> Path:
    rows = [{"id": f"s{n}", "question": f"{n} + {n} {HOSTILE}", "answer": str(2 * n)} for n in range(SAMPLES)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "mine.py").write_text(SOLVERS)
    spec = {
        "experiment": experiment,
        "description": HOSTILE,
        "models": [
            {"name": name, "provider": "mock", "price": {"input": 1.0, "output": 2.0}, "options": {"reply": reply}}
            for name, reply in (("one", "1"), ("two", "2"))
        ],
        "tasks": [
            {
                "name": "add",
                "dataset": {"path": "rows.jsonl", "id": "id", "input": "question", "target": "answer"},
                "prompt": "{question}",
                "solver": f"mine:{solver}",
                "scorers": ["includes", "mine:length"],
            }
        ],
        **changes,
    }
    path = folder / f"{solver}.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compared")
    for name, solver in (("first", "steady"), ("second", "shifted"), ("third", "shifted")):
        done = call("run", write(folder, solver), "--id", name, cwd=folder)
        assert done.code == 0, done.said
    done = call("run", write(folder, "steady", HOSTILE), "--id", HOSTILE, cwd=folder)
    assert done.code == 0, done.said
    return folder / "runs"


@pytest.fixture(scope="module")
def viewer(store: Path) -> Iterator[Served]:
    with serving(store) as found:
        yield found


def compared(store: Path, *runs: str) -> dict[str, Any]:
    done = call("compare", *runs, "--json", "--limit", "0", "--store", store, cwd=store)
    assert done.code == 0, done.said
    found: dict[str, Any] = done.json()
    return found


def every_sample(viewer: Served, address: str) -> list[dict[str, Any]]:
    """All pages of a list, followed by their links; then back again by the links to the page before."""
    found, pages = [], []
    while True:
        pages.append(viewer.json(address)["listed"]["samples"])
        found += pages[-1]
        links = links_in(viewer.html(address))
        following = [each for each in links if "after_key=" in each]
        if not following:
            break
        address = following[0].partition("#")[0]
    for page in reversed(pages[:-1]):
        previous = [each for each in links_in(viewer.html(address)) if "before_key=" in each]
        address = previous[0].partition("#")[0]
        assert viewer.json(address)["listed"]["samples"] == page
    return found


def test_two_runs_have_the_numbers_of_the_command(store: Path, viewer: Served) -> None:
    found = viewer.json("/compare?run=sums/first&run=sums/second")
    assert found["result"] == compared(store, "first", "second")
    assert found["is_current"]
    assert len(found["result"]["comparisons"]) == 4


def test_the_models_of_a_run_have_the_numbers_of_the_command(store: Path, viewer: Served) -> None:
    assert viewer.json("/runs/sums/first/compare")["result"] == compared(store, "first")
    assert 'class="durability"' in viewer.html("/runs/sums/first/compare")


def test_the_sentences_come_first(store: Path, viewer: Served) -> None:
    page = viewer.html("/compare?run=sums/first&run=sums/second")
    said = call("compare", "first", "second", "--store", store, cwd=store).out.splitlines()
    assert page.index("add/one, includes") < page.index("<table")
    first = viewer.json("/compare?run=sums/first&run=sums/second")["sentences"][0]
    assert first in said


def test_every_number_of_a_matrix_opens_exactly_its_samples(store: Path, viewer: Served) -> None:
    page = "/compare?run=sums/first&run=sums/second"
    found = viewer.json(page)
    scores = {
        name: {line["key"]: line["scores"]["includes"] for line in exported(name, store)}
        for name in ("first", "second")
    }
    assert [len(each["matrix"]) for each in found["changes"]] == [4, 0, 4, 0]
    cells = [address for address in links_in(viewer.html(page)) if "before=" in address]
    assert cells
    for address in cells:
        query = query_of(address)
        comparison = found["result"]["comparisons"][int(query["row"][0])]
        before, after = (json.loads(query[name][0]) for name in ("before", "after"))
        wanted = {
            key
            for key, value in scores["first"].items()
            if key.startswith(f"add/{comparison['first']['model']}/")
            and (value, scores["second"][key]) == (before, after)
        }
        listed = every_sample(viewer, address.partition("#")[0])
        assert {each["first_key"] for each in listed} == wanted
        assert len(listed) == len(wanted) == viewer.json(address.partition("#")[0])["listed"]["total"]


@pytest.mark.parametrize(("change", "column"), [("higher", "wins"), ("lower", "losses"), ("equal", "ties")])
def test_the_counts_of_the_table_open_their_samples(viewer: Served, change: str, column: str) -> None:
    page = "/compare?run=sums/first&run=sums/second"
    for row, comparison in enumerate(viewer.json(page)["result"]["comparisons"]):
        listed = every_sample(viewer, f"{page}&row={row}&change={change}")
        assert len(listed) == comparison[column]
        keys = [each["first_key"] for each in listed]
        assert len(set(keys)) == len(keys)


def test_changed_samples_are_those_of_the_command_with_question_target_and_both_answers(
    store: Path, viewer: Served
) -> None:
    done = call("compare", "first", "second", "--json", "--limit", "1000", "--store", store, cwd=store).json()
    for row, comparison in enumerate(done["comparisons"]):
        listed = every_sample(viewer, f"/compare?run=sums/first&run=sums/second&row={row}")
        assert len(listed) == len(comparison["changed"])
        for mine, theirs in zip(listed, comparison["changed"], strict=True):
            assert mine["first_key"].split("/")[2] == theirs["sample_id"]
            assert (mine["first_answer"], mine["second_answer"]) == (theirs["output_before"], theirs["output_after"])
            assert (mine["question"], mine["target"]) == (theirs["input"], theirs["target"])
            assert (mine["before"], mine["after"]) == pytest.approx((theirs["before"], theirs["after"]))
            kept = "".join(part["text"] for part in mine["diff"] if part["kind"] != "inserted")
            assert kept == mine["first_answer"]


def test_both_sides_open_and_words_are_marked(viewer: Served) -> None:
    page = viewer.html("/compare?run=sums/first&run=sums/second&change=higher")
    links = links_in(page)
    assert any(each.startswith("/runs/sums/first/samples/add/one/") for each in links)
    assert any(each.startswith("/runs/sums/second/samples/add/one/") for each in links)
    assert "<del>" in page
    assert "<ins>" in page


def test_models_texts_and_names_are_texts(viewer: Served) -> None:
    for path in (
        "/compare?run=sums/first&run=sums/second",
        f"/compare?run=sums/first&run=sums/second&change={HOSTILE}&before={HOSTILE}&after={HOSTILE}",
        "/leaderboard",
        f"/leaderboard?task={HOSTILE}",
        "/history?experiment=%3Cscript%3Ealert('x')%3C%2Fscript%3E",
        "/compare?run=%253Cscript%253Ealert('x')%253C%252Fscript%253E/%253Cscript%253Ealert('x')%253C%252Fscript%253E&run=sums/first",
    ):
        status, page = viewer.get(path.replace(" ", "%20"))
        assert status in (200, 400, 404), page
        assert "<script>alert" not in page
        assert "<img" not in page
        assert "<b>at" not in page


def test_a_run_with_a_hostile_name_is_compared(viewer: Served) -> None:
    others = viewer.json("/runs/sums/first/compare")["others"]
    assert {(each["experiment"], each["run_id"]) for each in others} == {
        ("sums", "second"),
        ("sums", "third"),
        (HOSTILE, HOSTILE),
    }
    name = "%253Cscript%253Ealert%2528%2527x%2527%2529%253C%252Fscript%253E"
    found = viewer.json(f"/compare?run=sums/first&run={name}/{name}")
    assert found["result"]["comparisons"][0]["second"]["run"] == HOSTILE


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/compare?run=sums/first&run=sums/nothing", 404, "there is no run"),
        ("/compare?run=nothing", 404, "does not name a run"),
        ("/compare?run=sums/first&run=sums/second&row=x", 400, "not a whole number"),
        ("/runs/sums/first/compare?evaluation=none", 200, "has no evaluation"),
        (f"/runs/sums/first/compare?row=0&change=all&before={'%5B' * 2000}&after=1", 200, "Compare"),
    ],
)
def test_what_there_is_not_is_said(viewer: Served, path: str, status: int, words: str) -> None:
    found, text = viewer.get(path)
    assert found == status
    assert words in text.replace("&#x27;", "'")


def test_without_runs_the_page_offers_them(viewer: Served) -> None:
    page = viewer.html("/compare")
    assert page.count("<select") == 2
    assert viewer.json("/compare")["result"] is None


def test_several_runs_are_each_compared_with_the_first(store: Path, viewer: Served) -> None:
    found = viewer.json("/compare?run=sums/first&run=sums/second&run=sums/third&row=5&change=all")
    assert found["result"] == compared(store, "first", "second", "third")
    assert found["listed"]["samples"]


def test_a_leaderboard_is_that_of_the_command(store: Path, viewer: Served) -> None:
    found = viewer.json("/leaderboard?run=sums/first&run=sums/second")
    done = call("leaderboard", "first", "second", "--format", "json", "--store", store, cwd=store)
    assert found["result"] == done.json()
    assert "/runs/sums/second/samples?task=add" in viewer.html("/leaderboard?run=sums/first&run=sums/second")
    chosen = viewer.json("/leaderboard?run=sums/first&run=sums/second&scorer=includes&task=add")
    assert {board["scorer"] for board in chosen["result"]["boards"]} == {"includes"}


def test_a_leaderboard_of_an_experiment_ranks_its_newest_runs(viewer: Served) -> None:
    found = viewer.json("/leaderboard?experiment=sums")
    assert [each["run_id"] for each in found["runs"]] == ["third", "second", "first"]
    assert found["result"]["boards"]


def test_the_history_has_the_score_of_every_run_with_its_interval(store: Path, viewer: Served) -> None:
    found = viewer.json("/history?experiment=sums")
    assert [each["ref"]["run_id"] for each in found["runs"]] == ["first", "second", "third"]
    shown = [call("show", name, "--json", "--store", store, cwd=store).json() for name in ("first", "second", "third")]
    for board in found["boards"]:
        for series in board["series"]:
            for point in series["points"]:
                score = next(
                    each
                    for each in shown[point["run"]]["scores"]
                    if (each["task"], each["scorer"], each["model"])
                    == (board["task"], board["scorer"], series["model"])
                )
                assert [point[name] for name in ("mean", "low", "high", "n")] == [
                    score[name] for name in ("mean", "low", "high", "n")
                ]
    page = viewer.html("/history?experiment=sums")
    assert "<svg" in page
    assert any(query_of(each).get("run") == ["sums/first", "sums/second"] for each in links_in(page))
