"""Few-shot examples: which are selected, to whom they are shown, and how."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from holdfast.errors import SpecError
from holdfast.plan import prepare
from tests.unit.plan.plans import spec_of

ROWS = [
    {
        "id": f"{subject}{number}",
        "q": f"{subject} question {number}",
        "subject": subject,
        "target": f"{subject}-{number}",
    }
    for number in range(6)
    for subject in ("a", "b")
]


def write(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def asked(folder: Path, fewshot: dict[str, Any], rows: Any = None, shots: Any = None, **fields: Any) -> dict[str, Any]:
    """The messages of each sample. Without `shots` the examples are from the evaluated file."""
    data = write(folder / "rows.jsonl", ROWS if rows is None else rows)
    path = data if shots is None else write(folder / "shots.jsonl", shots)
    dataset = {"path": data, "input": "q", **fields.pop("dataset", {})}
    task = {"name": "t", "dataset": dataset, "prompt": "{q}", "fewshot": {"path": path, **fewshot}, **fields}
    spec = spec_of(tasks=[task])
    (work,) = prepare(spec, {}, {}).values()
    return {sample.id: work.renderer.messages(sample) for sample in work.samples(spec)}


def questions(messages: list[dict[str, Any]]) -> list[str]:
    return [message["content"] for message in messages if message["role"] == "user"]


def test_the_first_examples_are_shown_as_turns_with_their_targets(tmp_path: Path) -> None:
    shots = [{"q": f"shot {number}", "target": f"answer {number}"} for number in range(4)]
    found = asked(tmp_path, {"n": 2, "pick": "first"}, ROWS[:1], shots)["a0"]
    assert [(each["role"], each["content"]) for each in found] == [
        ("user", "shot 0"),
        ("assistant", "answer 0"),
        ("user", "shot 1"),
        ("assistant", "answer 1"),
        ("user", "a question 0"),
    ]


def test_examples_as_text_are_one_message_and_their_answers_follow_a_template(tmp_path: Path) -> None:
    shots = [{"q": f"shot {number}", "target": f"answer {number}", "why": f"reason {number}"} for number in range(2)]
    fewshot = {"n": 2, "pick": "first", "style": "text", "answer": "{why}, so {target}"}
    found = asked(tmp_path, fewshot, ROWS[:1], shots, prompt="Q: {q}\nA:")["a0"]
    assert [each["role"] for each in found] == ["user"]
    assert found[0]["content"] == (
        "Q: shot 0\nA: reason 0, so answer 0\n\nQ: shot 1\nA: reason 1, so answer 1\n\nQ: a question 0\nA:"
    )


@pytest.mark.parametrize("by", ["", "subject"])
def test_random_examples_depend_on_the_seed(tmp_path: Path, by: str) -> None:
    shots = [{"id": f"s{number}", "q": f"shot {number}", "target": "x", "subject": "a"} for number in range(40)]

    def shown(seed: int) -> list[str]:
        return questions(asked(tmp_path, {"n": 3, "seed": seed, "by": by}, ROWS[:1], shots)["a0"])

    assert shown(1) == shown(1)
    assert len({tuple(shown(seed)) for seed in range(6)}) > 1


@pytest.mark.parametrize("pick", ["first", "random"])
def test_examples_have_the_value_of_the_sample_in_the_column_by(tmp_path: Path, pick: str) -> None:
    for sample, messages in asked(tmp_path, {"n": 3, "by": "subject", "pick": pick}).items():
        *shown, own = questions(messages)
        assert own.startswith(sample[0])
        assert len(shown) == 3
        assert all(text.startswith(sample[0]) for text in shown)


def test_the_first_examples_of_each_value_are_replaced_if_they_are_the_sample_itself(tmp_path: Path) -> None:
    found = asked(tmp_path, {"n": 2, "by": "subject", "pick": "first"})
    assert questions(found["a0"])[:-1] == ["a question 1", "a question 2"]
    assert questions(found["a1"])[:-1] == ["a question 0", "a question 2"]
    assert questions(found["b5"])[:-1] == ["b question 0", "b question 1"]


@given(
    groups=st.lists(st.integers(0, 5), min_size=8, max_size=30),
    n=st.integers(1, 3),
    seed=st.integers(0, 50),
    pick=st.sampled_from(["first", "random"]),
)
def test_no_sample_is_shown_itself_or_its_group(
    tmp_path_factory: pytest.TempPathFactory, groups: list[int], n: int, seed: int, pick: str
) -> None:
    rows = [{"id": str(at), "q": f"question {at}.", "g": group, "target": "x"} for at, group in enumerate(groups)]
    group_of = {row["q"]: row["g"] for row in rows}
    largest = max(map(groups.count, groups))
    assume(largest <= 16 and len(rows) - largest >= n)  # 16 more examples than n are kept
    found = asked(tmp_path_factory.mktemp("x"), {"n": n, "seed": seed, "pick": pick}, rows, dataset={"group": "g"})
    assert len(found) == len(rows)
    for messages in found.values():
        *shown, own = questions(messages)
        assert len(shown) == n == len(set(shown))
        assert group_of[own] not in {group_of[text] for text in shown}


def test_too_few_examples_are_refused_with_their_number(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"tasks\[0\].fewshot.n: n is 20, but there are only 12 examples$"):
        asked(tmp_path, {"n": 20, "pick": "first"})
    with pytest.raises(SpecError, match=r"fewshot.n: n is 7, but there are only 6 examples with subject 'a'"):
        asked(tmp_path, {"n": 7, "by": "subject"})
    with pytest.raises(SpecError, match=r"fewshot.by: the examples have no column 'topic'"):
        asked(tmp_path, {"n": 1, "by": "topic"})
    with pytest.raises(SpecError, match=r"fewshot: there are only 5 examples with subject 'a', 6 are needed; lower n"):
        asked(tmp_path, {"n": 6, "by": "subject"})


def test_a_value_of_by_without_any_example_is_refused(tmp_path: Path) -> None:
    shots = [row for row in ROWS if row["subject"] == "a"]
    with pytest.raises(SpecError, match=r"there are only 0 examples with subject 'b', 1 are needed"):
        asked(tmp_path, {"n": 1, "by": "subject"}, ROWS, shots)
