"""The HTML report of real runs: examples with their questions, the state of the run, a small file."""

import html
import re
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import call, write_rows, write_spec

OWN = '''
from holdfast import Answer, Score
from holdfast.models import ModelError


async def answer(request):
    text = request.messages[-1]["content"]
    if "fail" in text:
        raise ModelError("bad_request", "refused <b>" + text)
    if "huge" in text:
        return "<i>" * 70_000 + " the end is 7"
    return "a right answer 7" if "right" in text else "a wrong answer 8"


def judged(sample, answer):
    """Whether it is right, with a reason."""
    return Score("7" in answer.text, reason="the judge says <script>")


async def twin(request):
    return "a right answer 7"
'''
KINDS = ("right", "wrong", "fail", "huge")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("html")
    (made / "own.py").write_text(OWN)
    rows = [
        {"id": f"{kind}-{i}", "question": f"{kind} question {i} <u>", "answer": "7 <q>"}
        for i in range(3)
        for kind in KINDS
    ]
    write_rows(made / "sums.jsonl", rows)
    model = {"provider": "own:answer", "name": "one", "options": {}, "price": {"input": 1.0, "output": 2.0}}
    task = {"prompt": "{question}", "scorers": ["own:judged"], "sample_retries": 0}
    for name, is_recorded in (("r", True), ("hidden", False)):
        spec = write_spec(made, task=task, model=model, record_data=is_recorded)
        write_rows(made / "sums.jsonl", rows)
        assert call("run", spec, "--id", name, cwd=made).code == 1
    return made


def page_of(folder: Path, *names: str) -> str:
    done = call("report", *names, "--format", "html", cwd=folder)
    assert done.code == 0, done.err
    return done.out


def text_of(page: str) -> str:
    return html.unescape(re.sub(r"<[^>]*>", " ", page.partition("<main>")[2]))


def section(page: str, title: str) -> str:
    """The text of a section."""
    return text_of("<main>" + page.partition(f"<h2>{title}</h2>")[2].partition("</section>")[0])


def test_examples_have_the_question_the_target_and_the_reason(folder: Path) -> None:
    page = page_of(folder, "r")
    found = section(page, "Example answers")
    assert "4 of 6 right answers" in found
    assert "3 of 3 wrong answers" in found
    assert re.search(r"wrong-1\s+Question\s+wrong question 1 <u>\s+Target\s+7 <q>\s+Answer\s+a wrong answer 8", found)
    assert "judged: wrong" in found
    assert "the judge says <script>" in found
    assert "<script" not in page
    failures = section(page, "Failures")
    assert re.search(r"bad_request\s+3 samples\s+Message\s+refused <b>fail question 0 <u>", failures)
    assert re.search(r"Question\s+fail question 0 <u>\s+Target\s+7 <q>", failures)


def test_a_long_answer_is_cut_in_the_middle(folder: Path) -> None:
    page = page_of(folder, "r")
    assert "Show more of 210,013 characters" in page
    assert "the end is 7" in page
    assert len(page) < 120_000


def test_a_page_is_the_same_every_time(folder: Path) -> None:
    assert page_of(folder, "r") == page_of(folder, "r")


def test_a_run_without_its_data_has_answers_only(folder: Path) -> None:
    found = section(page_of(folder, "hidden"), "Example answers")
    assert "this run does not record its data" in found
    assert "a wrong answer 8" in found
    assert "7 <q>" not in found


def test_the_models_of_a_run_and_several_runs_are_compared(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    models: list[dict[str, Any]] = [
        {"provider": f"own:{name}", "name": name, "options": {}} for name in ("answer", "twin")
    ]
    spec = write_spec(tmp_path, 40, task={"prompt": "{question}", "scorers": ["own:judged"]}, models=models)
    assert call("run", spec, "--id", "two", cwd=tmp_path).code == 0
    page = page_of(tmp_path, "two")
    assert "twin is better than answer by 100.0 points" in section(page, "Summary")
    assert "adjusted p" in section(page, "Comparison")
    assert "to see whether the models differ" not in page
    alone = write_spec(tmp_path, 40, task={"prompt": "{question}", "scorers": ["own:judged"]}, models=models[1:])
    assert call("run", alone, "--id", "alone", cwd=tmp_path).code == 0
    assert "Comparison" not in page_of(tmp_path, "alone")
    assert "have equal scores" in section(page_of(tmp_path, "alone", "two"), "Summary")


def test_an_interrupted_run_is_named_at_the_top(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, 10, limits={"run": {"requests": 4}}, concurrency={"samples": 1})
    assert call("run", spec, "--id", "r", cwd=tmp_path).code == 6
    found = text_of(page_of(tmp_path, "r"))
    said = "This run is not complete (interrupted: budget: limits.run.requests is 4, and 4 is used). 4 of 10 answers"
    assert 0 < found.index(said) < found.index("Summary")


def test_the_file_does_not_grow_with_the_run(tmp_path: Path) -> None:
    sizes = []
    for count in (30, 3_000):
        spec = write_spec(tmp_path, count, model={"options": {"reply": ["8", "9"]}}, concurrency={"samples": 50})
        assert call("run", spec, "--id", f"r{count}", cwd=tmp_path).code == 0
        page = page_of(tmp_path, f"r{count}")
        sizes.append(len(page))
        totals = [int(each.replace(",", "")) for each in re.findall(r"\d of ([\d,]+) (?:right|wrong) answer", page)]
        assert sum(totals) == count
    assert sizes[1] < 1.1 * sizes[0]
