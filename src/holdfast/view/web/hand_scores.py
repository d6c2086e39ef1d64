"""Scores that people set in the browser. Only with `--edit`, from a page of this server, with a token in the form.

The score takes the same way as `holdfast score --set`: a live run writes it itself, otherwise this process takes the
run's lock for a moment.
"""

import asyncio
from collections.abc import Mapping

from aiohttp import web

from holdfast.errors import HoldfastError
from holdfast.view.links import Editing, Links
from holdfast.view.page import PageRequest
from holdfast.view.web.access import Access

FIELDS = ("scorer", "value", "reason", "author", "evaluation")
SCORES = "/runs/{experiment}/{run}/samples/{task}/{model}/{sample}/{repeat}/scores"
_BYTES_MAX = 100_000


class RefusedError(HoldfastError):
    """A write that is not allowed."""


def editing_with(access: Access) -> Editing:
    """What forms need, with the user of this process as the author."""
    from holdfast.runs.scoring import find_author

    return Editing(access.form_token, find_author())


async def save_score(request: web.Request, page: PageRequest, access: Access, links: Links) -> str:
    """Record the score of a form, and return the address to go to. Raises RefusedError if writing is not allowed, and
    UsageError if the score cannot be set.
    """
    if links.editing is None:
        raise RefusedError("scores cannot be set here; start the viewer with --edit")
    if request.content_length is not None and request.content_length > _BYTES_MAX:
        raise RefusedError("the form is too large")
    try:
        form = await request.post()
    except (ValueError, LookupError) as error:  # not text, or in an unknown encoding
        raise RefusedError("the form cannot be read") from error
    fields = {name: value for name, value in form.items() if isinstance(value, str)}
    if not access.allows_write(request, fields.get("form_token", "")):
        raise RefusedError("this form is not of this server, or is from before its restart; open the page again")
    # In a thread of its own: a live run may take seconds to reply, and pages must not wait for it.
    await asyncio.to_thread(_save, page, fields)
    evaluation, listed = page.query.get("evaluation", ""), page.query.get("list", "")
    return f"{links.sample(page.run, page.key, evaluation=evaluation, list=listed)}#scores"


def _save(page: PageRequest, fields: Mapping[str, str]) -> None:
    from holdfast.runs.requests import set_score  # imported late: most viewers never write
    from holdfast.runs.scoring import Edit

    with page.sources.open(page.run) as run:
        place = run.place.whole  # what is open of a sharded run is a copy: a score in it would be lost
    given = {name: fields.get(name, "") for name in FIELDS}
    set_score(place, Edit(key=page.key, **given), quiet=True)
    with page.sources.open(page.run) as run:
        run.expire_copy()
