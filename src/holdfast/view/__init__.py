"""The web viewer: pages about runs, rendered by the server, live, and readable as JSON.

`sources` opens runs, `pages` shows them, `server` serves them to a browser that `access` has let in, `events` keeps
open pages up to date. The viewer only reads; with `--edit` it also records scores that people set.
"""

from holdfast.view.bundle import write_bundle
from holdfast.view.sources import Sources
from holdfast.view.web.access import user_token
from holdfast.view.web.server import THREAD_NAME, ViewSettings, serve

__all__ = ["THREAD_NAME", "Sources", "ViewSettings", "serve", "user_token", "write_bundle"]
