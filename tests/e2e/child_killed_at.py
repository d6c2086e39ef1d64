"""The command, killed as soon as it calls one function: `child_killed_at.py MODULE FUNCTION ARGUMENTS…`."""

import importlib
import os
import signal
import sys
from typing import NoReturn

from holdfast.cli.main import main


def die(*_: object, **__: object) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable")


if __name__ == "__main__":
    module, function = sys.argv[1:3]
    setattr(importlib.import_module(module), function, die)
    sys.argv[1:] = sys.argv[3:]
    main()
