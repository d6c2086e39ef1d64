"""What one line of a journal is: its bytes, its checksum and its types.

Invariant: a line that was torn, glued, flipped or written for another run never parses as a record of this one. Pure:
no clock, no files, no event loop; the journal room brings those. `exchange` holds what passes between rooms, `facts`
the data of each record type, `keys` the identity of an answer.
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
