"""All answers to one sample: its repeats, also those of an extension, and the task's other models."""

from pathlib import Path
from typing import Any

import holdfast
from holdfast.view import Sources
from holdfast.view.links import Links
from holdfast.view.page import PageRequest
from holdfast.view.pages.sample import repeats


def request(store: Path, **path: str) -> PageRequest:
    sources = Sources([str(store)], str(store))
    return PageRequest(sources, {"experiment": "default", "run": "r", "task": "t", **path}, {})


def models() -> list[Any]:
    replies: dict[str, Any] = {"a": "<b>one</b>", "b": ["one", "two", "three"]}
    return [{"name": name, "provider": "mock", "options": {"reply": reply}} for name, reply in replies.items()]


def test_repeats_of_an_extension_are_among_them_and_every_model_is_there(tmp_path: Path) -> None:
    rows = [{"id": f"s{n}", "input": f"{n}?", "target": "one"} for n in range(5)]
    task = holdfast.Task("t", rows, "{input}", scorers=["exact_match"], repeats=2)
    with holdfast.run(task, models=models(), id="r", store=str(tmp_path)) as run:
        run.extend(changes={"tasks.t.repeats": 4})
        listed = {line.key: line for line in run.lines()}
    asked = request(tmp_path, model="b", sample="s3")
    found = repeats.load(asked)
    assert [each.model for each in found.models] == ["b", "a"]
    assert (found.input, found.target) == ("3?", "one")
    shown = [each for model in found.models for each in model.repeats]
    assert [each.key for each in shown] == [f"t/{name}/s3/{number}" for name in ("b", "a") for number in (1, 2, 3, 4)]
    outputs = [each.output for each in shown]
    for each in shown:
        line = listed[each.key]
        assert (each.output, each.scores, each.status) == (line.output, line.scores, "finished")
        assert each.same == outputs.count(each.output)
    body = repeats.render(found, Links())
    assert "&lt;b&gt;one&lt;/b&gt;" in body.content
    assert "<b>" not in body.content
    assert "4 answers, all are equal." in body.content
    asked.sources.close()
