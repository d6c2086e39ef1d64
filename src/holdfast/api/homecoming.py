"""Going on with a run that is only in its mirror: it is brought into a store here, and nothing else changes.

Who may write it is not decided here but, as always, when it is claimed: a run whose process still lives elsewhere is
then refused, and what was brought home is a copy that the next try goes on with.
"""

from collections.abc import Callable

from holdfast.api.mirroring import objects_of, restore_whole
from holdfast.api.places import RunPlace, place_of
from holdfast.api.recovering import Counted, Moved, only_run
from holdfast.errors import StoreError, UsageError
from holdfast.journal.pieces import MirrorSource
from holdfast.journal.removal import refuse_removed
from holdfast.spec import Mirror


def bring_to(store: str, url: str, warn: Callable[[str], None], moved: Moved) -> RunPlace:
    """The run's place in a store here, made if there is none."""
    objects, experiment, run_id = only_run(url)
    place = place_of(store, experiment, run_id)
    if place.began:
        return place
    try:
        source = MirrorSource(objects)
        refuse_removed(source)
        if not source.pieces():
            raise UsageError(f"{url} holds no records yet: start the run with: holdfast run SPEC --id {run_id}")
        restore_whole(place, [Counted(source, moved)], warn)
    except StoreError as error:
        raise UsageError(str(error)) from error
    return place


def check_mirror(mirror: Mirror | None, place: RunPlace, url: str) -> None:
    """UsageError if going on would not be seen by whoever has the run in that mirror."""
    meant, _, _ = only_run(url)
    if mirror is not None and objects_of(mirror.url, place).url == meant.url.rstrip("/"):
        return
    above = meant.url.rstrip("/").rsplit("/", 2)[0]
    now = f"its mirror.url is {mirror.url}" if mirror is not None else "it would have no mirror"
    raise UsageError(
        f"{place.run_id} was brought home from {url}, but {now}; to keep it in the mirror that it comes from: "
        f"{place.command('resume', '--set', f'mirror.url={above}')}"
    )
