"""The encoding of standard output: a terminal or locale that lacks characters (ASCII, Latin-1) never ends a command.

No character is lost without a trace. Text for people shows a missing character as `\\uXXXX`. Machine-readable output is
written in ASCII with the escapes of its own format, so that a parser gets the original text back.
"""

import codecs
import io
import sys

JSON_ESCAPES = "holdfast.json_escapes"
XML_ESCAPES = "xmlcharrefreplace"


def _escape_as_json(error: UnicodeError) -> tuple[str, int]:
    """Error handler: unlike `backslashreplace`, every escape is valid JSON, also beyond the 16-bit range."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i] << 8 | units[i + 1]:04x}" for i in range(0, len(units), 2)), error.end


codecs.register_error(JSON_ESCAPES, _escape_as_json)


def escape_missing_characters() -> None:
    """Once, when the process starts. Standard error does this by itself."""
    stream = _encoder()
    if stream is not None:
        stream.reconfigure(errors=JSON_ESCAPES)


def lacks_characters() -> bool:
    """Whether the encoding of standard output cannot show every character."""
    stream = _encoder()
    return stream is not None and not codecs.lookup(stream.encoding).name.startswith("utf")


def escape_for_machines(escapes: str = JSON_ESCAPES) -> None:
    """Before machine-readable output: ASCII if the encoding is not Unicode. Programs expect UTF-8, of which ASCII is a
    part; Latin-1 bytes would be wrong even where the encoding has the character.
    """
    stream = _encoder()
    if stream is not None and lacks_characters():
        stream.reconfigure(encoding="ascii", errors=escapes)


def _encoder() -> io.TextIOWrapper | None:
    """What turns standard output into bytes, also below a `CleanStream`; None if it is not encoded, as in tests."""
    stream = getattr(sys.stdout, "unfiltered", sys.stdout)
    return stream if isinstance(stream, io.TextIOWrapper) else None
