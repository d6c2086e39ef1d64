"""What is odd about one answer, whatever its scores say: it goes round in circles, declines, is in another script than
the question, or is not in the format that was asked for.

Pure, and cheap enough for every sample: what is looked at of a long text is bounded. In doubt nothing is said: a list
that cries wolf is switched off. Empty, truncated and filtered answers are `Answer.marks`; what only many answers tell
together is found where they are read together (`report.anomalies`).
"""

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from holdfast.records.exchange import Answer, Sample
from holdfast.score.refusing import refusal_in
from holdfast.score.scripts import asks_for_language, is_used, likely_script, name_of, script_of, scripts_in

VERSION = 1
"""Of the list below. If it changes, a resume or `holdfast score --anomalies` checks old answers again. `invalid_values`
did not change it: older versions recorded nothing that it could be found in.
"""

KINDS = {
    "loop": "the same phrase again and again",
    "refusal": "reads like a refusal",
    "language": "in another script than the question",
    "format": "not in the format that was asked for",
    "invalid_values": "the server sent values that cannot be right; they were dropped",
    "identical": "the same in all repeats, at a temperature above 0",
    "slow": "took far longer than the others",
    "scores_differ": "another score than an equal answer to the same sample",
}
"""All kinds beside the marks, and what is said of an answer that has it."""

_WINDOW = 8192
_PROBE = 32
_SHORTEST_LOOP = 240
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\d_]+")
_FENCED = re.compile(r"```(?:json|JSON)?\s*\n(.*?)```", re.DOTALL)
_SHOWN = 60
_READ_MAX = 20_000
"""So many characters of a row are looked at for its script."""
_TEXTS_MAX = 200
_DEEPEST = 6
_VALUES_SHOWN = 300


class Expected(msgspec.Struct, frozen=True):
    """What a task with a model says of how its answers should look."""

    scripts: frozenset[str] = frozenset()
    """That occur in the task's own words."""
    any_script: bool = False
    """The task's words speak of languages: any may be right."""
    json: str = ""
    """Empty if nothing asks for JSON; `whole` if the answer is to be JSON; `part` if it is to hold some."""


def expected_of(task: Mapping[str, Any], params: Mapping[str, Any]) -> Expected:
    """From a task of an effective spec, as plain data, and the parameters of the model that is asked."""
    own = " ".join(_texts([task.get(name) for name in ("system", "prompt", "messages")]))
    return Expected(frozenset(scripts_in(own)), asks_for_language(own), _json_asked(task, params))


def look_at(sample: Sample, answer: Answer, expected: Expected) -> dict[str, str]:
    """The kinds of anomaly that one answer has, each with what shows it."""
    text = answer.text
    told = {
        "loop": _loop(text, is_cut="truncated" in answer.marks),
        "refusal": refusal_in(answer),
        "language": _language(sample, text, expected),
        "format": _format(answer, expected),
        "invalid_values": "; ".join(answer.dropped)[:_VALUES_SHOWN],
    }
    return {kind: reason for kind, reason in told.items() if reason}


def _loop(text: str, *, is_cut: bool) -> str:
    """A loop mostly goes on to the end; one that stopped by itself is found at a quarter, half or three quarters."""
    size = len(text)
    if size < _SHORTEST_LOOP:
        return ""
    for end in (size, size * 3 // 4, size // 2, size // 4):
        window = text[max(end - _WINDOW, 0) : end]
        probe = window[-_PROBE:]
        if len(window) >= _SHORTEST_LOOP and window.count(probe) >= 3:
            unit, times = _repeated(window, probe)
            if _is_loop(unit, times, size, is_cut=is_cut):
                shown = " ".join(unit.split())[:_SHOWN]
                return f"{shown!r} again and again, {times} times or more"
    return ""


def _repeated(window: str, probe: str) -> tuple[str, int]:
    """What the window ends with over and over, and how often."""
    length = len(window) - len(probe) - window.rfind(probe, 0, len(window) - 1)
    unit, times, more = window[-length:], 1, len(window) // length
    while times < more:  # halving: the loop may be of one character
        middle = (times + more + 1) // 2
        times, more = (middle, more) if window.endswith(unit * middle) else (times, middle - 1)
    return unit, times


def _is_loop(unit: str, times: int, size: int, *, is_cut: bool) -> bool:
    """A phrase need not come as often as a word, and what has no letters in it (a rule, zeros) is seldom a loop."""
    words = _WORD.findall(unit * 3)[1:-1]  # it may begin in the middle of one
    repeated = len(unit) * times
    if len(words) >= 10 and len(set(words)) >= 3:
        return times >= (4 if len(unit) >= 200 else 8) and repeated >= _SHORTEST_LOOP
    most = repeated * 2 >= min(size, _WINDOW)
    return most and repeated >= 400 and times >= 40 and (bool(words) or is_cut)


def _language(sample: Sample, text: str, expected: Expected) -> str:
    likely = likely_script(text)
    if expected.any_script or likely in expected.scripts or is_used(likely, sample.input):
        return ""  # the quick way out for most samples
    script = script_of(text)
    if not script or script in expected.scripts:
        return ""
    texts = itertools.islice(_texts([sample.input, sample.target, sample.row]), _TEXTS_MAX)
    asked = " ".join(texts)[:_READ_MAX]
    seen = scripts_in(asked) | expected.scripts
    if not seen or script in seen or asks_for_language(asked):
        return ""
    return f"{name_of(script)}, where the question has {' and '.join(sorted(map(name_of, seen)))}"


def _format(answer: Answer, expected: Expected) -> str:
    if not expected.json or answer.marks or answer.tool_calls or _is_json(answer.text):
        return ""
    if expected.json == "part" and any(map(_is_json, _candidates(answer.text))):
        return ""
    return f"no JSON: {' '.join(answer.text.split())[:_SHOWN]!r}"


def _candidates(text: str) -> Iterator[str]:
    yield from _FENCED.findall(text)
    for opened, closed in ("{}", "[]"):
        yield text[text.find(opened) : text.rfind(closed) + 1]


def _is_json(text: str) -> bool:
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return False
    return True


def _json_asked(task: Mapping[str, Any], params: Mapping[str, Any]) -> str:
    """Only where the model's own text is the answer: another solver may make anything of it."""
    asked = params.get("response_format")
    if task.get("solver") == "chat" and isinstance(asked, Mapping) and str(asked.get("type")).startswith("json"):
        return "whole"
    names = [name for each in task.get("scorers") or () for name in ([each] if isinstance(each, str) else each)]
    return "part" if any(name in {"json_field", "json_schema"} for name in names) else ""


def _texts(value: Any, depth: int = 0) -> Iterator[str]:
    """Every text in plain data."""
    if isinstance(value, str):
        yield value
    elif depth < _DEEPEST and isinstance(value, Mapping):
        for each in value.values():
            yield from _texts(each, depth + 1)
    elif depth < _DEEPEST and isinstance(value, list):
        for each in value:
            yield from _texts(each, depth + 1)
