"""Server-sent events, as the standard has them."""

import pytest

from holdfast.models.http.bodies import SseEvent, parse_events


@pytest.mark.parametrize(
    ("body", "events"),
    [
        (b"", []),
        (b"data: a\n\n", [SseEvent("", "a")]),
        (b"data:a\n\ndata:  b\n\n", [SseEvent("", "a"), SseEvent("", " b")]),
        (b"event: x\ndata: a\n\ndata: b\n\n", [SseEvent("x", "a"), SseEvent("", "b")]),
        (b"data: a\r\n\r\ndata: b\r\rdata: c\n\n", [SseEvent("", "a"), SseEvent("", "b"), SseEvent("", "c")]),
        (b": a comment\nid: 7\nretry: 9\ndata: a\ndata: b\n\n", [SseEvent("", "a\nb")]),
        (b"event: ping\n\ndata: a\n\n", [SseEvent("", "a")]),
        (b"\xef\xbb\xbfdata: \xc3\xa4\n\n", [SseEvent("", "ä")]),
        (b"data: whole\n\ndata: cut", [SseEvent("", "whole")]),
        (b"data: whole\n\ndata: cut\n", [SseEvent("", "whole")]),
        (b'data: {"a": 1}\n\ndata: {"b": ', [SseEvent("", '{"a": 1}')]),
        (b'data: {"a": 1}\n\ndata: 12', [SseEvent("", '{"a": 1}')]),
        (b'event: x\ndata: {"a": 1}', [SseEvent("x", '{"a": 1}')]),
        (b'data: {"a": 1}\n\ndata: [DONE]', [SseEvent("", '{"a": 1}'), SseEvent("", "[DONE]")]),
        (b'data: {"a": 1}\n\ndata: [DONE]\n', [SseEvent("", '{"a": 1}'), SseEvent("", "[DONE]")]),
    ],
)
def test_events_are_what_empty_lines_end_or_is_whole_at_the_end(body: bytes, events: list[SseEvent]) -> None:
    assert list(parse_events(body)) == events
