"""The command on a file system without flock: `child_no_flock.py EXPIRY_SECONDS ARGUMENTS…`."""

import errno
import fcntl
import os
import socket
import sys
import time

from holdfast.cli.main import main
from holdfast.journal.ownership import terms

BEAT_SECONDS = 0.1


def flock(*_: object) -> None:
    raise OSError(errno.ENOLCK, "No locks available")


if __name__ == "__main__":
    fcntl.flock = flock
    host = os.environ.get("TEST_HOST", "") or socket.gethostname()
    socket.gethostname = lambda: host
    terms.EXPIRY_SECONDS = float(sys.argv.pop(1))
    terms.Term.__init__.__defaults__ = (BEAT_SECONDS, terms.EXPIRY_SECONDS, time.monotonic, time.sleep)
    main()
