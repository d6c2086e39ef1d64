"""Resumes: what spec.yaml may say, which failed samples get new attempts, and what every resume leaves behind."""

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import example, settings
from hypothesis import given as drawn_from
from hypothesis import strategies as st

from holdfast.errors import DamagedError, DriftError, UsageError
from holdfast.models import ModelError, Request
from holdfast.records.samples import Answer
from holdfast.runs import Given, Retry, Run
from tests.caches import index_file
from tests.unit.engine.runs import RUN, Asked, cut_after, folder, given, go, model, records, rows
from tests.unit.runs.advice import Told, files, grow, retry, summary, told_of

_RESUMED = re.compile(r"^# Resumed by holdfast \S+ at \S+: (.*)$", re.MULTILINE)


def wide(told: Told, samples: int = 256, count: int = 2, **fields: Any) -> Given:
    return given([Asked(rows=rows(count))], [model("m", told)], concurrency={"samples": samples}, **fields)


def spec_file(store: Path) -> Path:
    return Path(folder(store), "spec.yaml")


def body_of(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#"))


def reformatted(text: str) -> str:
    return yaml.safe_dump(yaml.safe_load(text), sort_keys=True, default_flow_style=True, indent=7)


ACCEPTED: dict[str, Callable[[str], str]] = {
    "without its header": body_of,
    "reformatted": reformatted,
    "with comments": lambda text: f"# mine\n{text}\n# the end\n",
    "with other line ends": lambda text: text.replace("\n", "\r\n"),
    "with a byte order mark": lambda text: "\ufeff" + text,
}


@pytest.mark.parametrize("complete", [True, False], ids=["complete", "interrupted"])
@pytest.mark.parametrize("how", [*ACCEPTED, "missing"])
def test_a_spec_file_that_says_the_same_is_written_again(tmp_path: Path, how: str, complete: bool) -> None:
    told = Told()
    go(tmp_path, wide(told))
    if not complete:
        cut_after(tmp_path, lambda kind, data: kind != "sample.finished")
    path = spec_file(tmp_path)
    good = path.read_bytes()
    path.unlink()
    if how != "missing":
        path.write_bytes(ACCEPTED[how](good.decode()).encode())
    assert go(tmp_path, wide(told)).finished == 2
    assert path.read_bytes() == good
    assert len(told.asked) == 2


@pytest.mark.parametrize("earlier", [0, 1, 2])
def test_a_spec_file_of_an_earlier_state_is_written_again(tmp_path: Path, earlier: int) -> None:
    told, states = Told(), []
    for samples in (5, 6, 7):
        go(tmp_path, wide(told, samples))
        states.append(spec_file(tmp_path).read_bytes())
    spec_file(tmp_path).write_bytes(states[earlier])
    go(tmp_path, wide(told, 7))
    assert spec_file(tmp_path).read_bytes() == states[-1]


REFUSED: dict[str, Callable[[bytes], bytes]] = {
    "a value was changed": lambda raw: raw.replace(b"samples: 256", b"samples: 8"),
    "a field was added": lambda raw: raw + b"extra: 1\n",
    "a field was taken away": lambda raw: raw.replace(b"fail_on_error: 0.0\n", b""),
    "a number became a text": lambda raw: raw.replace(b"samples: 256", b"samples: '256'"),
    "cut in the middle": lambda raw: raw[: len(raw) // 2],
    "only the header": lambda raw: b"".join(line for line in raw.splitlines(True) if line.startswith(b"#")),
    "empty": lambda raw: b"",
    "zeros": lambda raw: bytes(len(raw)),
    "a list": lambda raw: b"- a\n- b\n",
    "a text": lambda raw: b"hello\n",
    "no UTF-8": lambda raw: raw + b"# \xff\xfe\n",
    "no YAML": lambda raw: b"a: [1, 2\nb: }\n",
    "two documents": lambda raw: raw + b"---\n" + raw,
    "an unknown tag": lambda raw: raw + b"extra: !!python/object:os.system {}\n",
    "a bad boolean": lambda raw: raw + b"extra: !!bool maybe\n",
    "a bad timestamp": lambda raw: raw + b"extra: !!timestamp soon\n",
    "a bad number": lambda raw: raw + b"extra: !!int ''\n",
    "a bad date": lambda raw: raw + b"extra: 2024-13-45\n",
    "a part that holds itself": lambda raw: raw + b"extra: &a [*a]\n",
    "a list as a key": lambda raw: raw + b"? [a, b]\n: 1\n",
    "nested deeply": lambda raw: raw + b"extra: " + b"[" * 1200 + b"]" * 1200 + b"\n",
    "a newer format": lambda raw: re.sub(rb"# Format \d+", b"# Format 99", raw),
    "a huge format": lambda raw: re.sub(rb"# Format \d+", b"# Format " + b"9" * 5000, raw),
}


@pytest.mark.parametrize("how", REFUSED)
def test_a_spec_file_that_says_something_else_is_refused_and_nothing_is_changed(tmp_path: Path, how: str) -> None:
    told = Told()
    go(tmp_path, wide(told))
    path = spec_file(tmp_path)
    bad = REFUSED[how](path.read_bytes())
    assert bad != path.read_bytes()
    path.write_bytes(bad)
    before = files(tmp_path)
    for again, wanted in ((go, wide(told)), (go, wide(told, samples=9)), (grow, wide(told, count=3))):
        with pytest.raises(DriftError, match=r"spec\.yaml") as refusal:
            again(tmp_path, wanted)
        assert "\n" not in str(refusal.value)
    assert files(tmp_path) == before
    path.unlink()
    assert go(tmp_path, wide(told)).finished == 2
    assert len(told.asked) == 2


def test_a_folder_in_place_of_the_spec_file_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, wide(told))
    spec_file(tmp_path).unlink()
    spec_file(tmp_path).mkdir()
    before = files(tmp_path)
    with pytest.raises(DamagedError, match=r"spec\.yaml"):
        go(tmp_path, wide(told))
    assert files(tmp_path) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="whoever may read everything is refused nothing")
def test_a_spec_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, wide(told))
    spec_file(tmp_path).chmod(0)
    with pytest.raises(DriftError, match=r"spec\.yaml"):
        go(tmp_path, wide(told))


DESCRIPTIONS = st.text(min_size=1).filter(lambda text: "${" not in text)


@settings(max_examples=10, deadline=None)
@drawn_from(text=DESCRIPTIONS)
@example("line\x85separated")
@example("line\u2028separated\u2029here")
@example("text\n# Format 99\n")
@example(" leading\n\n  and trailing \n")
@example("---\n...\n# Format 99\n---\n")
@example("\ufeffmark")
@example("tab\tand\x7fdelete\x00nothing")
def test_whatever_a_description_says_the_file_that_was_written_is_accepted(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    accept_description(tmp_path_factory.mktemp("described"), text)


@pytest.mark.long
@settings(max_examples=200, deadline=None)
@drawn_from(text=DESCRIPTIONS)
def test_whatever_any_description_says_the_file_that_was_written_is_accepted(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    accept_description(tmp_path_factory.mktemp("described"), text)


def accept_description(store: Path, text: str) -> None:
    told = Told()
    wanted = wide(told, count=1, description=text)
    go(store, wanted)
    raw = spec_file(store).read_bytes()
    assert go(store, wanted).finished == 1
    assert spec_file(store).read_bytes() == raw
    assert go(store, wide(told, 3, count=1, description=f"{text}x")).finished == 1
    assert go(store, wide(told, 3, count=1, description=f"{text}x")).finished == 1


def test_ten_resumes_add_their_lines_and_leave_the_first_ones_as_they_are(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, wide(told, 20))
    first = spec_file(tmp_path).read_bytes().split(b"experiment:")[0]
    assert first.count(b"\n") == 4
    assert b"# Started by holdfast " in first
    for samples in range(21, 31):
        before = spec_file(tmp_path).read_bytes().split(b"experiment:")[0]
        go(tmp_path, wide(told, samples))
        text = spec_file(tmp_path).read_bytes()
        assert text.startswith(first)
        assert text.startswith(before)
    told_lines = _RESUMED.findall(spec_file(tmp_path).read_text())
    assert told_lines == [f"concurrency.samples: {samples - 1} -> {samples}" for samples in range(21, 31)]
    assert len(told.asked) == 2


def test_resumes_and_extensions_are_reported_in_their_order(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, wide(told, 5, limit=1))
    grow(tmp_path, wide(told, 5, limit=2))
    go(tmp_path, wide(told, 6, limit=2))
    grow(tmp_path, wide(told, 7, count=3))
    lines = _RESUMED.findall(spec_file(tmp_path).read_text())
    assert lines == [
        "limit: 1 -> 2",
        "concurrency.samples: 5 -> 6",
        "limit: 2 -> null",
        "concurrency.samples: 6 -> 7",
    ]


class KilledError(BaseException):
    """As if the process had been killed here."""


@pytest.mark.parametrize("how", ["first", "resume", "extend"])
def test_killed_between_the_record_and_the_file_it_is_repaired_by_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    import holdfast.runs.execution.execute as executing
    import holdfast.runs.execution.resume as resuming

    def die(*arguments: Any) -> None:
        raise KilledError

    told = Told()
    wanted = {"first": wide(told), "resume": wide(told, 9), "extend": wide(told, count=3)}[how]
    if how != "first":
        go(tmp_path, wide(told))
    with monkeypatch.context() as patch:
        patch.setattr(executing, "write_spec_file", die)
        patch.setattr(resuming, "write_spec_file", die)
        with pytest.raises(KilledError):
            (grow if how == "extend" else go)(tmp_path, wanted)
    go(tmp_path, wanted)
    text = spec_file(tmp_path).read_text()
    stored = yaml.safe_load(text)
    assert stored["concurrency"]["samples"] == (9 if how == "resume" else 256)
    assert len(_RESUMED.findall(text)) == (how == "resume")
    assert len(told.asked) == (3 if how == "extend" else 2)


def test_an_old_file_of_a_complete_run_is_repaired_without_a_record(tmp_path: Path) -> None:
    told = Told()
    go(tmp_path, wide(told))
    old = spec_file(tmp_path).read_bytes()
    go(tmp_path, wide(told, 9))
    new = spec_file(tmp_path).read_bytes()
    journal = records(tmp_path)
    spec_file(tmp_path).write_bytes(old)
    go(tmp_path, wide(told, 9))
    assert spec_file(tmp_path).read_bytes() == new
    assert records(tmp_path) == journal


def test_an_evaluation_change_is_reported_in_the_file_as_well(tmp_path: Path) -> None:
    told = Told()
    for scorers in (["exact_match"], ["includes"]):
        go(tmp_path, given([Asked(rows=rows(2), fields={"scorers": scorers})], [model("m", told)]))
    assert _RESUMED.findall(spec_file(tmp_path).read_text()) == ['tasks.task.scorers: ["exact_match"] -> ["includes"]']
    assert {tuple(scores) for _, _, scores in told_of(tmp_path).values()} == {("includes",)}


class Moody:
    """A model that fails for some questions, each in its own way, until it is repaired."""

    def __init__(self, kinds: dict[str, Any]) -> None:
        self.kinds = kinds
        self.asked: list[str] = []

    async def __call__(self, request: Request) -> Answer:
        text = str(request.messages[-1]["content"])
        self.asked.append(text[-1])
        if text[-1] in self.kinds:
            raise ModelError(self.kinds[text[-1]], "no")
        return Answer(text, {"role": "assistant", "content": text})


def moody() -> tuple[Moody, Given]:
    """Six samples: two fail as server, one as content_filter, one as timeout."""
    told = Moody({"1": "server", "2": "content_filter", "3": "timeout", "4": "server"})
    return told, given([Asked(rows=rows(6), fields={"sample_retries": 0})], [model("moody", told)])


def key(number: int) -> str:
    return f"task/moody/s{number}/1"


def statuses(store: Path) -> str:
    """F finished, x failed, . unfinished, in plan order."""
    return "".join({"finished": "F", "failed": "x", "unfinished": "."}[each[0]] for each in told_of(store).values())


@pytest.mark.parametrize(
    ("chosen", "asked", "after"),
    [
        (Retry(), "1234", "FFFFFF"),
        (Retry(keep=True), "", "FxxxxF"),
        (Retry(kinds=("server",)), "14", "FFxxFF"),
        (Retry(kinds=("server", "content_filter")), "124", "FFFxFF"),
        (Retry(keys=(key(3),)), "3", "FxxFxF"),
        (Retry(keys=(key(3), key(3), key(1))), "13", "FFxFxF"),
        (Retry(kinds=("timeout",), keys=(key(2),)), "23", "FxFFxF"),
        (Retry(kinds=("server",), keys=(key(1),)), "14", "FFxxFF"),
    ],
    ids=str,
)
def test_only_the_chosen_failed_samples_are_asked_again(tmp_path: Path, chosen: Retry, asked: str, after: str) -> None:
    told, wanted = moody()
    assert go(tmp_path, wanted).failed == 4
    assert statuses(tmp_path) == "FxxxxF"
    told.asked.clear()
    kinds, told.kinds = told.kinds, {}
    ended = retry(tmp_path, wanted, chosen)
    assert sorted(told.asked) == list(asked)
    assert statuses(tmp_path) == after
    assert (ended.finished, ended.failed, ended.unfinished) == (after.count("F"), after.count("x"), 0)
    found = summary(tmp_path)
    assert (found.finished, found.failed, found.status) == (ended.finished, ended.failed, "completed")
    assert sum(each["count"] for each in found.failures) == ended.failed
    assert ended.exit_code() == (1 if ended.failed else 0)
    left = {kinds[str(number)] for number, sign in enumerate(after) if sign == "x"}
    assert {each["kind"] for each in found.failures} == left


@pytest.mark.parametrize(
    ("chosen", "named"),
    [
        (Retry(kinds=("rate_limit",)), "rate_limit"),
        (Retry(kinds=("server", "nonsense")), "nonsense"),
        (Retry(keys=("task/moody/s9/1",)), "s9"),
        (Retry(keys=("s1",)), "s1"),
        (Retry(keys=("",)), "no key"),
        (Retry(keys=(key(0),)), "has not failed"),
        (Retry(keys=(key(1), key(0))), "has not failed"),
        (Retry(keys=("\udcff",)), "no key"),
    ],
    ids=repr,
)
def test_what_cannot_be_tried_again_is_reported_in_one_sentence_and_nothing_is_changed(
    tmp_path: Path, chosen: Retry, named: str
) -> None:
    told, wanted = moody()
    go(tmp_path, wanted)
    told.asked.clear()
    before = files(tmp_path)
    with pytest.raises(UsageError) as refusal:
        retry(tmp_path, wanted, chosen)
    assert named in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert (told.asked, files(tmp_path)) == ([], before)


def test_a_kind_is_the_last_one_that_a_sample_failed_with(tmp_path: Path) -> None:
    told, wanted = moody()
    go(tmp_path, wanted)
    told.kinds = {"1": "timeout", "4": "server"}
    retry(tmp_path, wanted, Retry(kinds=("server",)))
    assert statuses(tmp_path) == "FxxxxF"
    told.asked.clear()
    retry(tmp_path, wanted, Retry(kinds=("server",)))
    assert told.asked == ["4"]
    told.asked.clear()
    retry(tmp_path, wanted, Retry(kinds=("timeout",)))
    assert sorted(told.asked) == ["1", "3"]


def test_unfinished_samples_are_answered_by_a_retry_of_others_and_by_keeping_the_failed(tmp_path: Path) -> None:
    for chosen, asked in ((Retry(keys=(key(1),)), "15"), (Retry(keep=True), "5")):
        store = tmp_path / asked
        told, wanted = moody()
        go(store, one_at_a_time(wanted))
        cut_after(store, lambda kind, data: not (kind == "step" and data["o"] == 5))
        assert statuses(store) == "Fxxxx."
        told.asked.clear()
        told.kinds = {}
        ended = retry(store, wanted, chosen)
        assert sorted(told.asked) == list(asked)
        assert ended.unfinished == 0
        assert summary(store).unfinished == 0


def one_at_a_time(wanted: Given) -> Given:
    """In the order of the plan."""
    narrow = msgspec.structs.replace(wanted.spec.concurrency, samples=1)
    return msgspec.structs.replace(wanted, spec=msgspec.structs.replace(wanted.spec, concurrency=narrow))


def test_a_chosen_sample_that_was_cut_off_is_unfinished_and_the_others_stay_failed(tmp_path: Path) -> None:
    told, wanted = moody()
    go(tmp_path, wanted)
    told.kinds = {}
    retry(tmp_path, wanted, Retry(keys=(key(3),)))
    seen = iter(range(99))
    cut_after(tmp_path, lambda kind, data: not (kind == "sample.finished" and data["o"] == 3 and next(seen) >= 0))
    assert statuses(tmp_path) == "Fxx.xF"
    found = summary(tmp_path)
    assert (found.finished, found.failed, found.unfinished) == (2, 3, 1)
    told.asked.clear()
    assert retry(tmp_path, wanted, Retry(keep=True)).failed == 3
    assert (told.asked, statuses(tmp_path)) == ([], "FxxFxF")


def test_the_index_and_its_rebuilding_agree_after_retries(tmp_path: Path) -> None:
    told, wanted = moody()
    go(tmp_path, wanted)
    for chosen in (Retry(keys=(key(1),)), Retry(keep=True), Retry(kinds=("content_filter",))):
        summary(tmp_path)
        retry(tmp_path, wanted, chosen)
    kept = summary(tmp_path)
    index_file(folder(tmp_path)).unlink()
    assert summary(tmp_path) == kept
    with Run.find(str(tmp_path), RUN) as run:
        assert [cell.failed for cell in run.cells()] == [4]
    assert len(told.asked) == 6 + 1 + 1
