"""Holding a request back: for its model's turn, for what its run may spend, for a job of a batch API.

Invariant: while a request is held back it is not under way. Its sample's clock stands still, unless something else of
the sample is under way, and none of the waiting counts as time that the model took.
"""

import contextlib
import time
from collections.abc import Callable, Iterator

from holdfast.models.timing import Timer, under_way
from holdfast.solve.stopwatch import running


@contextlib.contextmanager
def held(
    clock: Callable[[], float] = time.monotonic, limited_seconds: Callable[[float], float] = lambda now: 0.0
) -> Iterator[None]:
    """Before it is sent. `limited_seconds`: for how long a rate limit has held back everything, at a moment."""
    began = clock()
    limited = limited_seconds(began)
    with _aside() as timer:
        try:
            yield
        finally:
            now = clock()
            if timer is not None:
                timer.held(now - began, limited_seconds(now) - limited)


@contextlib.contextmanager
def in_job() -> Iterator[None]:
    """As a part of a job, or of one that is being gathered."""
    began = time.monotonic()
    with _aside() as timer:
        try:
            yield
        finally:
            if timer is not None:
                timer.was_in_job(time.monotonic() - began)


@contextlib.contextmanager
def _aside() -> Iterator[Timer | None]:
    watch = running.get()
    with contextlib.nullcontext() if watch is None else watch.stopped():
        yield under_way.get()
