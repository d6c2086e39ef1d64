"""Records of several journals in one: new numbers, ordinals and references."""

import array
from pathlib import Path

import msgspec

from holdfast.journal import CopyWriter, Entry, Reader
from holdfast.records import ScoreGiven, Step, decode, draft
from holdfast.runs.shards.merger import Merger, MergeSource, NumberFile
from tests.e2e.commands import call, write_spec


def test_numbers_survive_reopening_and_what_a_crash_left_is_cut(tmp_path: Path) -> None:
    path = str(tmp_path / "numbers")
    file = NumberFile(path, 0)
    for number in (5, 0, 9):
        file.append(number)
    assert [file[i] for i in range(-1, 4)] == [0, 5, 0, 9, 0]
    file.flush()
    file.extend(array.array("Q", [11, 12]))
    file.flush()
    file.close()
    again = NumberFile(path, 3)  # the last two were written after the state that counts them
    assert (len(again), again[2], again[3]) == (3, 9, 0)
    again.append(13)
    again.flush()
    assert [again[i] for i in range(4)] == [5, 0, 9, 13]
    again.close()


def entries(journal: str) -> list[Entry]:
    return [each for each in Reader(journal).read() if isinstance(each, Entry)]


def test_references_lead_to_the_same_records_after_merging(tmp_path: Path) -> None:
    """Every score names the answer of its key, and every step the step before it, in the new numbering."""
    write_spec(tmp_path, 12, models=[{"name": "m", "provider": "mock", "options": {"reply": "8"}}])
    for number in (1, 2):
        part = ("--id", "x", "--shard", f"{number}/2", "--store", tmp_path / f"store-{number}")
        assert call("run", tmp_path / "eval.yaml", *part, cwd=tmp_path).code == 0
    (tmp_path / "merged").mkdir()
    writer = CopyWriter(str(tmp_path / "merged"), "f" * 32)
    merger = Merger(writer, {})
    shards = [next((tmp_path / f"store-{i}").glob(f"sums/x/shards/{i}-of-2/journal")) for i in (1, 2)]
    for number, journal in enumerate(shards):
        ordinals = NumberFile(str(tmp_path / f"ordinals-{number}"), 0)
        ordinals.extend(array.array("Q", range(number, 24, 2)))
        source = MergeSource(f"shard {number}", NumberFile(str(tmp_path / f"numbers-{number}"), 0), ordinals)
        for entry in entries(str(journal)):
            merger.add(source, entry)
    writer.close(sealed=True)
    found = entries(str(tmp_path / "merged"))
    assert [each.line.n for each in found] == list(range(1, len(found) + 1))
    answers = {each.line.n: each.line.k for each in found if each.line.t == "sample.finished"}
    scores = [(each.line.k, decode(each.line, ScoreGiven)) for each in found if each.line.t == "score"]
    assert scores
    assert all(answers[score.of] == key for key, score in scores)
    steps = {each.line.n: decode(each.line, Step) for each in found if each.line.t == "step"}
    assert all(need in steps for step in steps.values() if step.asked is not None for need in step.asked.needs)
    ordinals_of_keys = {(each.line.k, msgspec.json.decode(each.line.d)["o"]) for each in found if each.line.k}
    assert len(ordinals_of_keys) == len({key for key, _ in ordinals_of_keys}) == 12


def test_a_copy_continues_where_it_ends_whatever_is_behind_it(tmp_path: Path) -> None:
    writer = CopyWriter(str(tmp_path), "a" * 32)
    at = "2026-01-01T00:00:00.000Z"
    for number in range(3):
        writer.append(draft("x-test", {"number": number}), at)
    writer.flush()
    tip = writer.tip
    writer.append(draft("x-test", {"number": 99}), at)
    writer.close(sealed=False)
    again = CopyWriter(str(tmp_path), "a" * 32, tip)
    again.append(draft("x-test", {"number": 3}), at)
    again.close(sealed=True)
    found = [msgspec.json.decode(each.line.d)["number"] for each in entries(str(tmp_path)) if each.line.t == "x-test"]
    assert found == [0, 1, 2, 3]
