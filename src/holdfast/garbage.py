"""Makes the garbage collector run less often where many objects with hardly a cycle are made."""

import contextlib
import ctypes
import gc
from collections.abc import Iterator

_COLLECT_AFTER = 50_000


@contextlib.contextmanager
def fewer_collections(after: int = _COLLECT_AFTER) -> Iterator[None]:
    """Collect only after this many new objects, not after 700. That saves a sixth of the time of a run over HTTP, where
    hundreds of samples are in flight, and a quarter of the time of reading a million rows.
    """
    before = gc.get_threshold()
    gc.set_threshold(max(before[0], after) if before[0] else 0, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def return_memory() -> None:
    """Return freed memory to the system. glibc keeps it otherwise; other C libraries do not have this function."""
    gc.collect()
    with contextlib.suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
