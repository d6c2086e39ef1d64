"""A plain download, in a process of its own: all objects below a URL, written and synced, and nothing looked at.

usage: child_download.py URL FOLDER
"""

import os
import sys

from holdfast.journal.object_store import open_objects


def main(url: str, folder: str) -> None:
    objects = open_objects(url)
    for each in objects.listed(""):
        path = os.path.join(folder, each.name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.writelines(objects.pieces(each.name))
            file.flush()
            os.fsync(file.fileno())


if __name__ == "__main__":
    main(*sys.argv[1:])
