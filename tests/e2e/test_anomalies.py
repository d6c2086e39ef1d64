"""Anomalies, with the real command: found when answers arrive, kept over a kill, looked for again."""

import json
import os
from pathlib import Path
from typing import Any
from unittest.mock import patch

from holdfast.engine import anomaly_scan
from holdfast.records.samples import Answer, Sample
from holdfast.score.anomalies import AnswerExpectations
from tests.e2e.commands import Done, call, exported, kill_when, run, shown, write_rows, write_spec

LOOP = "I need to check the sum once more. " * 40
REFUSAL = "I'm sorry, but I can't assist with that."
RUSSIAN = "Столица Франции — Париж, он стоит на реке Сене."
TEXTS = {"loop": LOOP, "refusal": REFUSAL, "plain": "It is 8.", "empty": " "}
ODD = {"loop": ["loop"], "refusal": ["refusal"], "plain": [], "empty": []}


def odd_spec(folder: Path, copies: int = 1, **changes: Any) -> Path:
    """A model that says what it is asked: each question is an answer of a kind."""
    rows = [
        {"id": f"{kind}{i}", "question": text, "answer": "8"} for i in range(copies) for kind, text in TEXTS.items()
    ]
    model = {"options": {"reply": "{last}", **changes.pop("options", {})}, **changes.pop("model", {})}
    task = {"prompt": "{question}", **changes.pop("task", {})}
    path = write_spec(folder, model=model, task=task, **changes)
    write_rows(folder / "sums.jsonl", rows)
    return path


def odd_keys(store: Path) -> dict[str, list[str]]:
    return {line["sample_id"]: list(line["anomalies"]) for line in exported("odd", store)}


def store_of(folder: Path) -> Path:
    return folder / "runs"


def started(folder: Path, **changes: Any) -> Done:
    done = call("run", odd_spec(folder, **changes), "--id", "odd", cwd=folder)
    assert done.code == 0, done.said
    return done


def test_a_report_lists_anomalies_and_how_to_see_the_answers(tmp_path: Path) -> None:
    said = started(tmp_path).out
    assert "sums/arith: anomaly loop in 1 answer (the same phrase again and again), e.g. sums/arith/loop0/1" in said
    assert "see: holdfast show odd --anomaly loop" in said
    assert "1 answer is empty" in said
    assert odd_keys(store_of(tmp_path)) == {f"{kind}0": kinds for kind, kinds in ODD.items()}
    listed = call("show", "odd", "--anomaly", "refusal", "--anomaly", "empty", "--json", cwd=tmp_path).json()
    assert [line["sample_id"] for line in listed] == ["refusal0", "empty0"]
    one = call("show", "odd", "sums/arith/loop0/1", cwd=tmp_path)
    assert "anomaly loop: 'I need to check the sum once more.' again and again" in one.out
    told = call("report", "odd", "--json", cwd=tmp_path).json()
    assert told["cells"][0]["anomalies"] == {"loop": 1, "refusal": 1}
    assert told["unlooked"] == 0
    csv = call("export", "odd", "--format", "csv", "--anomaly", "loop", cwd=tmp_path).out
    assert len(csv.splitlines()) == 2
    assert [each["kind"] for each in shown("odd", store_of(tmp_path))["answer_anomalies"]] == ["loop", "refusal"]


def test_another_script_and_another_format_are_found_where_the_spec_asked_for_one(tmp_path: Path) -> None:
    params = {"response_format": {"type": "json_object"}}
    task = {"prompt": "What is the capital of France? {question}"}
    started(tmp_path, options={"reply": RUSSIAN}, model={"params": params}, task=task)
    assert set(map(tuple, odd_keys(store_of(tmp_path)).values())) == {("language", "format")}


def test_a_kind_that_does_not_exist_is_refused_with_the_nearest(tmp_path: Path) -> None:
    started(tmp_path)
    wrong = call("show", "odd", "--anomaly", "lopp", cwd=tmp_path)
    assert wrong.code == 2
    assert "did you mean 'loop'?" in wrong.err
    spec = odd_spec(tmp_path, anomalies_except=["refusals"])
    bad = call("run", spec, "--id", "other", cwd=tmp_path)
    assert bad.code == 2
    assert "anomalies_except[0]: there is no anomaly 'refusals'; did you mean 'refusal'?" in bad.err


def test_switched_off_nothing_is_looked_at_and_a_resume_that_switches_it_on_looks_at_all(tmp_path: Path) -> None:
    said = started(tmp_path, anomalies=False).out
    assert "anomaly" not in said
    assert set(map(tuple, odd_keys(store_of(tmp_path)).values())) == {()}
    refused = call("score", "odd", "--anomalies", cwd=tmp_path)
    assert refused.code == 2
    assert "holdfast resume odd --set anomalies=true" in refused.err
    on = call("resume", "odd", "--set", "anomalies=true", cwd=tmp_path)
    assert on.code == 0, on.said
    assert odd_keys(store_of(tmp_path)) == {f"{kind}0": kinds for kind, kinds in ODD.items()}
    less = call("resume", "odd", "--set", "anomalies_except=[loop]", cwd=tmp_path)
    assert less.code == 0
    assert "anomaly loop" not in less.out
    assert "anomaly refusal" in less.out


def test_a_newer_list_is_used_on_demand_and_sends_no_request(tmp_path: Path) -> None:
    started(tmp_path)
    again = call("score", "odd", "--anomalies", cwd=tmp_path)
    assert again.code == 0, again.said
    assert "4 answers checked with version 1 of the list of anomalies, 0 changed; no request was sent" in again.err

    def newer(sample: Sample, answer: Answer, expected: AnswerExpectations) -> dict[str, str]:
        return {"format": "the newer list says so"} if sample.id == "plain0" else {}

    with patch.object(anomaly_scan, "find_anomalies", newer):
        again = call("score", "odd", "--anomalies", cwd=tmp_path)
    assert " 3 changed;" in again.err
    assert odd_keys(store_of(tmp_path)) == {"loop0": [], "refusal0": [], "plain0": ["format"], "empty0": []}
    assert shown("odd", store_of(tmp_path))["status"] == "completed"
    assert call("verify", "odd", cwd=tmp_path).code == 0


def test_a_run_that_was_killed_knows_of_the_anomalies_of_every_answer_that_it_kept(tmp_path: Path) -> None:
    spec = odd_spec(tmp_path, copies=60, options={"latency_seconds": 0.02}, concurrency={"samples": 8})
    journal = store_of(tmp_path) / "sums" / "odd" / "journal"

    def some_are_recorded() -> bool:
        return journal.is_dir() and sum(os.path.getsize(each) for each in journal.iterdir()) > 60_000

    assert kill_when(some_are_recorded, "run", spec, "--id", "odd", cwd=tmp_path)
    kept = {line["key"]: line["anomalies"] for line in exported("odd", store_of(tmp_path)) if line["output"]}
    assert 0 < len(kept) < 240
    done = run("run", spec, "--id", "odd", cwd=tmp_path)
    assert done.code == 0, done.said
    found = odd_keys(store_of(tmp_path))
    assert found == {f"{kind}{i}": kinds for i in range(60) for kind, kinds in ODD.items()}
    after = {line["key"]: line["anomalies"] for line in exported("odd", store_of(tmp_path))}
    assert {key: after[key] for key in kept} == kept


def test_an_answer_that_is_none_does_not_break_the_look_at_it(tmp_path: Path) -> None:
    """A solver may return an answer that holds anything: it fails when it is saved, and only its sample."""
    (tmp_path / "strange.py").write_text(
        "import msgspec\nfrom holdfast.records.samples import Answer\n\n\n"
        "async def solve(sample, ctx):\n"
        "    sample.row['self'] = sample.row\n"
        "    return Answer(5) if sample.id == 'plain0' else Answer('Столица Франции — Париж, он стоит на реке Сене.')\n"
    )
    spec = odd_spec(tmp_path, task={"solver": "strange:solve", "prompt": ""})
    done = run("run", spec, "--id", "odd", cwd=tmp_path)
    assert done.code == 1, done.said
    counts = shown("odd", store_of(tmp_path))
    assert (counts["finished"], counts["failed"]) == (3, 1)
    assert json.dumps(odd_keys(store_of(tmp_path))).count("language") == 3
