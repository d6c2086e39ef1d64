"""The command on a disk that saves nothing more from the first answer on: `child_slow_disk.py ARGUMENTS…`."""

import os
import threading
from typing import Any

from holdfast.cli.main import main
from holdfast.solve import steps

if __name__ == "__main__":
    answered = threading.Event()
    sync, checked = os.fdatasync, vars(steps)["checked"]

    def stuck_sync(handle: Any) -> None:
        if answered.is_set():
            threading.Event().wait()
        sync(handle)

    def note_answer(*arguments: Any) -> Any:
        answered.set()
        return checked(*arguments)

    vars(os)["fdatasync"] = stuck_sync
    vars(steps)["checked"] = note_answer
    main()
