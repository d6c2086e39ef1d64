"""The command on a file system without flock, with a term of office that expires soon."""

import errno
import fcntl
import time

from holdfast.cli.main import main
from holdfast.journal import terms

BEAT_SECONDS = 0.1
EXPIRY_SECONDS = 1.5


def flock(*_: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


if __name__ == "__main__":
    fcntl.flock = flock
    terms.EXPIRY_SECONDS = EXPIRY_SECONDS
    terms.Term.__init__.__defaults__ = (BEAT_SECONDS, EXPIRY_SECONDS, time.monotonic, time.sleep)
    main()
