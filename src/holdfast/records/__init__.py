"""Records: the lines of a journal, with their bytes, checksums and data types.

Invariant: a line that was torn, glued, flipped or written for another run never parses as a record of this run. Pure:
no clock, no files, no event loop. `line` has the bytes, `record_types` and `facts` the data of each record type,
`samples` the types that all packages share (Sample, Answer, Score), `keys` the identity of an answer.
"""

from holdfast.records.line import LINE_BYTES_MAX, Draft, Line, draft, frame, parse, seed_of, writable
from holdfast.records.record_types import FORMAT, Anomaly, Fence, Segment, is_known

__all__ = [
    "FORMAT",
    "LINE_BYTES_MAX",
    "Anomaly",
    "Draft",
    "Fence",
    "Line",
    "Segment",
    "draft",
    "frame",
    "is_known",
    "parse",
    "seed_of",
    "writable",
]
