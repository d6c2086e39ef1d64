"""Server-sent events, as the standard has them."""

import pytest

from holdfast.models.http.bodies import Event, parse_events


@pytest.mark.parametrize(
    ("body", "events"),
    [
        (b"", []),
        (b"data: a\n\n", [Event("", "a")]),
        (b"data:a\n\ndata:  b\n\n", [Event("", "a"), Event("", " b")]),
        (b"event: x\ndata: a\n\ndata: b\n\n", [Event("x", "a"), Event("", "b")]),
        (b"data: a\r\n\r\ndata: b\r\rdata: c\n\n", [Event("", "a"), Event("", "b"), Event("", "c")]),
        (b": a comment\nid: 7\nretry: 9\ndata: a\ndata: b\n\n", [Event("", "a\nb")]),
        (b"event: ping\n\ndata: a\n\n", [Event("", "a")]),
        (b"\xef\xbb\xbfdata: \xc3\xa4\n\n", [Event("", "ä")]),
        (b"data: whole\n\ndata: cut", [Event("", "whole")]),
        (b"data: whole\n\ndata: cut\n", [Event("", "whole")]),
        (b'data: {"a": 1}\n\ndata: {"b": ', [Event("", '{"a": 1}')]),
        (b'data: {"a": 1}\n\ndata: 12', [Event("", '{"a": 1}')]),
        (b'event: x\ndata: {"a": 1}', [Event("x", '{"a": 1}')]),
        (b'data: {"a": 1}\n\ndata: [DONE]', [Event("", '{"a": 1}'), Event("", "[DONE]")]),
        (b'data: {"a": 1}\n\ndata: [DONE]\n', [Event("", '{"a": 1}'), Event("", "[DONE]")]),
    ],
)
def test_events_are_what_empty_lines_end_or_is_whole_at_the_end(body: bytes, events: list[Event]) -> None:
    assert list(parse_events(body)) == events
