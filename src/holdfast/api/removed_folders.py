"""Removing a run's folder so that a crash leaves no half run.

The folder is renamed to a hidden name first; from then on it is no run. What a crash leaves of it is removed by the
next `gc` or `doctor --fix`.
"""

import os
import shutil
import uuid

_PREFIX = ".gone-"


def hide_folder(folder: str) -> str:
    """Rename it; returns the hidden folder, which the caller removes."""
    hidden = os.path.join(os.path.dirname(folder), f"{_PREFIX}{uuid.uuid4().hex}")
    os.rename(folder, hidden)
    return hidden


def remove_hidden(experiment: str) -> None:
    """What was renamed to be removed, and is still there."""
    for name in os.listdir(experiment) if os.path.isdir(experiment) else ():
        if name.startswith(_PREFIX):
            shutil.rmtree(os.path.join(experiment, name), ignore_errors=True)


def finish_removals(store: str) -> None:
    """In every experiment of a store."""
    for name in os.listdir(store) if os.path.isdir(store) else ():
        remove_hidden(os.path.join(store, name))
