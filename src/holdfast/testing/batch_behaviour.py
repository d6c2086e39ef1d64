"""How the test server's batch APIs behave, and what they count."""

import msgspec

HANGS = {
    "upload": "the upload of the requests is not answered, and no job can be made of them",
    "create": "the job is made, and nobody is told",
    "results": "half of the results are sent, and then nothing",
}


class BatchBehaviour(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything about jobs. With nothing stated a job is done when it is first looked at, with all its answers.

    A fault of lines says every how-manieth line has it; the number of a line counts from 1.
    """

    polls: int = 1
    """A job is done when it was looked at so often."""
    hang: str = ""
    """One of HANGS; it happens once, and is seen in the statistics."""
    unlisted: int = 0
    """So many first lists of jobs are as if there were none: servers settle only after a while."""
    ends: tuple[str, ...] = ()
    """How the first jobs end: completed, expired, failed or cancelled. One that expired or was cancelled has answers to
    every second line, one that failed has none.
    """
    refusals: tuple[int, ...] = ()
    """Statuses that the first submissions of a job get."""
    forgets: bool = False
    """Jobs have no metadata, whatever was given."""
    locked: int = 0
    """So many first looks at jobs get a 401."""
    cuts: int = 0
    """So many first readings of results end in the middle."""
    missing_every: int = 0
    malformed_every: int = 0
    overloaded_every: int = 0
    """The line's own status is 503."""
    refused_every: int = 0
    """The line's own status is 400: a refusal for its content."""
    doubled_every: int = 0
    """A second line for the same request, with another answer."""
    unknown: int = 0
    """So many lines of requests that nobody made."""

    def __post_init__(self) -> None:
        if self.hang and self.hang not in HANGS:
            raise ValueError(f"hang {self.hang!r} is not known; use {', '.join(HANGS)}")


class JobStats(msgspec.Struct, frozen=True):
    """One job, as it came."""

    id: str
    token: str
    requests: int
    status: str


class BatchStats(msgspec.Struct, frozen=True):
    """`GET /batch-stats`. `by_digest`: how often each request was in a job."""

    jobs: list[JobStats]
    by_digest: dict[str, int]
    uploads: int
    looks: int
    lists: int
    downloads: int
    hanging: str
    """What hangs, or has hung."""
