"""Requests of other machines to the process that writes a mirrored run, such as `cancel`.

`lease/<epoch>-<id>.wish` is a request to the owner of that epoch, and `….wish.done` its reply. Both lie below `lease/`,
so the owner sees a request in the list that it reads with each heartbeat. It copies the request to its `control`
folder, where requests of its own machine are, and sends the reply back.

The sender deletes both objects. A crash of the sender leaves them: no later epoch obeys them, and they are deleted with
the run. A crash of the owner leaves a request without a reply.
"""

import contextlib
import os
import re
from collections.abc import Collection

from holdfast import files
from holdfast.journal.object_store import Objects
from holdfast.journal.ownership.claims import FOLDER as LEASES

CONTROL = "control"
"""The folder of a run with requests to its process."""
REQUEST_SUFFIX = ".wish"
REPLY_SUFFIX = ".done"
_NAME = re.compile(rf"{LEASES}/(\d{{6,12}})-([0-9a-f]{{32}}){re.escape(REQUEST_SUFFIX)}")


def request_name(epoch: int, unique: str) -> str:
    """The object of a request to the owner of an epoch. `unique`: 32 hexadecimal digits."""
    return f"{LEASES}/{epoch:06d}-{unique}{REQUEST_SUFFIX}"


class RequestRelay:
    """Passes requests in the object store on to one owner, and its replies back."""

    def __init__(self, run: str, objects: Objects, epoch: int) -> None:
        self._folder = os.path.join(run, CONTROL)
        self._objects = objects
        self._epoch = epoch
        self._received: set[str] = set()
        self._open: dict[str, str] = {}
        """By the object of each request without a reply: its file."""

    @property
    def is_waiting(self) -> bool:
        """Whether a reply is expected soon."""
        return bool(self._open)

    def receive(self, names: Collection[str]) -> None:
        """Copy new requests to the control folder. `names`: the objects below `lease/`."""
        for name in names:
            found = _NAME.fullmatch(name)
            if found is None or int(found[1]) != self._epoch or name in self._received:
                continue
            data = self._objects.get(name)
            if data is not None and f"{name}{REPLY_SUFFIX}" not in names:
                files.make_folder(self._folder)
                self._open[name] = os.path.join(self._folder, f"{found[2]}{REQUEST_SUFFIX}")
                files.replace_file(self._open[name], data)
            self._received.add(name)

    def reply(self) -> None:
        """Send the replies that were written since the last call."""
        for name, path in list(self._open.items()):
            with contextlib.suppress(FileNotFoundError):
                self._objects.put(f"{name}{REPLY_SUFFIX}", files.read_file(f"{path}{REPLY_SUFFIX}"))
                del self._open[name]
                for leftover in (path, f"{path}{REPLY_SUFFIX}"):
                    files.remove(leftover)
