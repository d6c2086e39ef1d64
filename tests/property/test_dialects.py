"""Whatever a server sends: an answer, or a ModelError. Whatever a solver sends: a body, or a ModelError."""

import copy
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.models import ModelError, Request
from holdfast.models.http.bodies import SseEvent, parse_events
from holdfast.models.http.endpoint import Dialect, build
from holdfast.models.providers.anthropic import Messages
from holdfast.models.providers.google import GenerateContent
from holdfast.models.providers.openai import Chat, Responses
from holdfast.records.samples import Answer, Usage
from holdfast.testing.anthropic import MessagesServer
from holdfast.testing.chat import ChatServer, ResponsesServer
from holdfast.testing.google import GenerateContentServer
from holdfast.testing.protocols import ServerAnswer, ServerProtocol

PAIRS: list[tuple[Dialect, ServerProtocol]] = [
    (Chat(), ChatServer()),
    (Responses(), ResponsesServer()),
    (Messages(), MessagesServer()),
    (GenerateContent(), GenerateContentServer()),
]
IDS = ["chat", "responses", "messages", "google"]
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a":1}'}}
MESSAGE = {"content": "42", "reasoning_content": "hm", "tool_calls": [CALL]}
LOGPROBS = [{"token": "42", "logprob": -0.5, "top_logprobs": [{"token": "43", "logprob": -1.5}]}]
ANSWER = ServerAnswer("id", "m", Answer("42", MESSAGE, [CALL], "tool_calls", Usage(9, 5, 3, 2, 1), LOGPROBS))
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, here: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [here, *(place for name, each in inner for place in places(each, (*here, name)))]


def damaged(value: Any, data: st.DataObject) -> Any:
    """The same with something else in one place of it, or without that place."""
    place = data.draw(st.sampled_from(places(value)))
    junk = data.draw(JUNK)
    if not place:
        return junk
    made = copy.deepcopy(value)
    part = made
    for step in place[:-1]:
        part = part[step]
    if data.draw(st.booleans()):
        part[place[-1]] = junk
    else:
        del part[place[-1]]
    return made


@pytest.mark.parametrize(("dialect", "protocol"), PAIRS, ids=IDS)
@given(data=st.data())
def test_a_damaged_body_is_an_answer_or_a_failure(
    dialect: Dialect, protocol: ServerProtocol, data: st.DataObject
) -> None:
    body = damaged(protocol.body(ANSWER), data)
    try:
        answer = dialect.answer(body)
    except ModelError:
        return
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Answer).text == answer.text


@pytest.mark.parametrize(("dialect", "protocol"), PAIRS, ids=IDS)
@given(data=st.data())
def test_a_damaged_stream_is_an_answer_or_a_failure(
    dialect: Dialect, protocol: ServerProtocol, data: st.DataObject
) -> None:
    events = list(parse_events(b"".join(protocol.events(ANSWER))))
    index = data.draw(st.integers(0, len(events) - 1))
    try:
        decoded = msgspec.json.decode(events[index].data)
    except msgspec.DecodeError:
        return  # the last line of a chat has nothing that could be damaged
    changed = msgspec.json.encode(damaged(decoded, data)).decode()
    kept = [] if data.draw(st.booleans()) else [SseEvent(events[index].name, changed)]
    try:
        answer = dialect.answer(dialect.joined([*events[:index], *kept, *events[index + 1 :]]))
    except ModelError:
        return
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Answer).text == answer.text


@pytest.mark.parametrize(("dialect", "protocol"), PAIRS, ids=IDS)
def test_a_stream_and_a_whole_body_are_the_same_answer(dialect: Dialect, protocol: ServerProtocol) -> None:
    events = list(parse_events(b"".join(protocol.events(ANSWER))))
    assert dialect.answer(dialect.joined(events)) == dialect.answer(protocol.body(ANSWER))


@pytest.mark.parametrize(("dialect", "protocol"), PAIRS, ids=IDS)
def test_a_stream_that_is_cut_anywhere_is_never_an_answer(dialect: Dialect, protocol: ServerProtocol) -> None:
    whole = b"".join(protocol.events(ANSWER))
    kinds = set()
    for length in range(len(whole.rstrip())):  # the line breaks behind the last event tell nothing
        with pytest.raises(ModelError) as raised:
            dialect.answer(dialect.joined(list(parse_events(whole[:length]))))
        kinds.add(raised.value.kind)
    assert kinds == {"connection"}


@pytest.mark.parametrize(("dialect", "protocol"), PAIRS, ids=IDS)
@given(data=st.data())
def test_a_damaged_conversation_is_a_body_or_a_refusal(
    dialect: Dialect, protocol: ServerProtocol, data: st.DataObject
) -> None:
    image = {"type": "image_url", "image_url": {"url": "https://x/y.png"}}
    talk = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "q"}, image]},
        {"role": "assistant", **MESSAGE},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]
    asked = damaged({"messages": talk, "params": {"stop": ["x"], "tool_choice": "auto", "max_tokens": 4}}, data)
    if not isinstance(asked, dict) or not isinstance(asked.get("messages"), list):
        return
    params = asked.get("params")
    request = Request(asked["messages"], params if isinstance(params, dict) else {})
    try:
        body = build(dialect, "m", request, stream=False)
    except ModelError:
        return
    assert isinstance(body, dict)
