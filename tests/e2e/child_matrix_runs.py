"""Starts one run with small segments and small frames, so that a small run has several of both."""

from functools import partial

from holdfast.cli.main import main
from holdfast.journal import OpenRequest, frames
from holdfast.runs.execution import session

SEGMENT_BYTES = 24_000
FRAME_BYTES = 4_000

if __name__ == "__main__":
    frames.FRAME_BYTES = FRAME_BYTES
    vars(session)["OpenRequest"] = partial(OpenRequest, segment_bytes=SEGMENT_BYTES)
    main()
