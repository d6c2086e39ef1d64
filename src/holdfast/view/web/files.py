"""Files that pages link to: stored files, whole samples, lines of the journal, long texts.

A stored file is shown only if its first bytes are those of a picture of a known type; everything else is saved by the
browser. What it is called or claims to be decides nothing. Each read is verified: a damaged file is an error.
"""

import itertools
import re
from collections.abc import Iterator
from typing import Any

import msgspec

from holdfast.errors import DamagedError
from holdfast.journal import BlobError, blob_size, read_pieces
from holdfast.records import Reference, parse_key
from holdfast.report import QuestionReader
from holdfast.view.page import FilePage, FileReply, PageRequest
from holdfast.view.pages.sample.records import find_record, origins_of, stored_entry
from holdfast.view.sources import NotFoundError
from holdfast.view.transcript import find_key, open_reader

_DIGEST = re.compile(r"[0-9a-f]{64}", re.ASCII)
_BYTES = "application/octet-stream"
_TEXT = "text/plain; charset=utf-8"
_SAMPLE = "/runs/{experiment}/{run}/samples/{task}/{model}/{sample}/{repeat}"


def image_type(beginning: bytes) -> str:
    """The type of a picture by its first bytes; empty if they are not those of a known type."""
    if beginning.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if beginning.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if beginning.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    return "image/webp" if beginning[:4] == b"RIFF" and beginning[8:12] == b"WEBP" else ""


def load_blob(request: PageRequest) -> FileReply:
    """A stored file by its digest."""
    digest = request.path["digest"]
    if not _DIGEST.fullmatch(digest):
        raise NotFoundError("that is not the digest of a file")
    with request.sources.open(request.run) as run:
        folder = run.place.folder
    if blob_size(folder, str(Reference(digest, _BYTES))) is None:
        raise NotFoundError(f"{request.run.run_id} has no file {digest}")
    pieces = read_pieces(folder, digest)
    try:  # the second piece too: a file of one piece is verified before anything of it is sent
        first, second = next(pieces, b""), next(pieces, b"")
    except BlobError as error:
        raise DamagedError(str(error)) from error
    shown = image_type(first)
    name = "" if shown else file_name(request.query.get("name", ""), digest[:16])
    return FileReply(_verified(first, second, pieces), shown or _BYTES, name)


def _verified(first: bytes, second: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    """All pieces, the last one only after the digest has been checked: a damaged file never looks whole."""
    held = first
    for piece in itertools.chain([second] if second else [], rest):
        yield held
        held = piece
    yield held


def file_name(wanted: str, otherwise: str) -> str:
    """A name to save a file under: no folders, no control characters, not hidden."""
    name = re.sub(r"[^\w.+ -]", "_", wanted.replace("\\", "/").rpartition("/")[2], flags=re.ASCII).strip(". ")
    return name[:100] or otherwise


def load_story(request: PageRequest) -> FileReply:
    """The whole sample, as `show RUN KEY --json` prints it."""
    key = request.key
    with request.sources.open(request.run) as run:
        find_key(run, key)
        content = msgspec.json.encode(run.show(key, request.query.get("evaluation", "")))
    parts = parse_key(key)
    name = file_name(f"{parts.task}-{parts.model}-{parts.sample_id}-{parts.repeat}".replace("/", "_"), "sample")
    return FileReply(content, "application/json", f"{name}.json")


def load_line(request: PageRequest) -> FileReply:
    """A record as it is stored: one line of JSON with its checksum."""
    with request.sources.open(request.run) as run, open_reader(run) as reader:
        entry = find_record(run, reader, request.key, request.path["n"])
        line = stored_entry(entry, origins_of(run, request.key)).line
    head = msgspec.json.encode({"n": line.n, "at": line.at, "t": line.t, **({} if line.k is None else {"k": line.k})})
    content = b'%b,"d":%b,"x":"%b"}\n' % (head[:-1], bytes(line.d), line.x.encode())
    return FileReply(content, "application/json", f"record-{line.n}.json")


def load_text(request: PageRequest) -> FileReply:
    """One text of a record, or of the row: see `Links.text`."""
    key, number, pointer = request.key, request.query.get("record", "0"), request.query.get("pointer", "")
    with request.sources.open(request.run) as run:
        if number == "0":
            planned = find_key(run, key)
            asked = QuestionReader(run.place.folder, run.index.story.spec).of(parse_key(key).task, planned.data)
            data: Any = {"row": planned.row, "input": asked.input, "target": asked.target, "prompt": asked.prompt}
        else:
            with open_reader(run) as reader:
                data = msgspec.json.decode(find_record(run, reader, key, number).line.d)
    value = _resolve(data, pointer)
    text = value if isinstance(value, str) else msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
    return FileReply(text.encode("utf-8", "backslashreplace"), _TEXT)


def _resolve(data: Any, pointer: str) -> Any:
    """A value by its JSON pointer. NotFoundError if there is none."""
    for part in pointer.split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(data, dict) and name in data:
            data = data[name]
        elif isinstance(data, dict) and name == "reasoning_content" and "reasoning" in data:  # of another server
            data = data["reasoning"]
        elif isinstance(data, list) and name in map(str, range(len(data))):
            data = data[int(name)]
        else:
            raise NotFoundError("there is no such text in this record")
    return data


FILES: tuple[FilePage, ...] = (
    FilePage("/runs/{experiment}/{run}/blobs/{digest}", load_blob),
    FilePage(f"{_SAMPLE}/story.json", load_story),
    FilePage(f"{_SAMPLE}/records/{{n}}/line", load_line),
    FilePage(f"{_SAMPLE}/text", load_text),
)
"""Every address that answers with a file."""
