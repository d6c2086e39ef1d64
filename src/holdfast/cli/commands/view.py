"""`holdfast view`: serves the web viewer until Ctrl-C, or writes a static copy of its pages."""

import asyncio
import contextlib
import ipaddress
import os
import signal
import sys
import threading
import webbrowser
from collections.abc import Callable, Sequence

from holdfast.errors import UsageError
from holdfast.report import counted, human_bytes
from holdfast.runs import default_store
from holdfast.view import THREAD_NAME, Sources, ViewSettings, serve, user_token, write_bundle


def view_runs(targets: Sequence[str], store: str | None, settings: ViewSettings, *, opens: bool) -> int:
    """Serve until a signal comes. The one line on standard output is the address."""
    if not _is_loopback(settings.host) and not settings.exposed:
        raise UsageError(
            f"--host {settings.host} lets other machines connect: anyone with the link sees all runs here, over "
            "a connection that is not encrypted; add --yes-expose if you want that"
        )
    sources = Sources(targets, store or default_store())

    def ready(address: str, for_browser: str) -> None:
        print(address, flush=True)  # noqa: T201 - the output of the command
        if opens and sys.stdout.isatty() and (os.environ.get("DISPLAY") or sys.platform == "darwin"):
            # In a thread: some browsers return only when they are closed.
            threading.Thread(target=webbrowser.open, args=(for_browser,), daemon=True).start()

    code = asyncio.run(_until_signal(sources, settings, ready))
    if any(each.name.startswith(THREAD_NAME) for each in threading.enumerate()):
        # A normal exit would wait until they have read a large run to its end. They write nothing.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    return code


def bundle_runs(
    targets: Sequence[str], store: str | None, folder: str, evaluation: str, *, include_restricted: bool = False
) -> int:
    """Write a static copy of the runs into a folder."""
    from holdfast.cli.progress import Spinner, is_watched

    sources = Sources(targets, store or default_store(), frozen=True, published=not include_restricted)
    spinner = Spinner(f"writing {folder}") if is_watched() else None
    if spinner is not None:
        spinner.start()
    try:
        made = write_bundle(sources, folder, None if spinner is None else spinner.update, evaluation=evaluation)
    finally:
        if spinner is not None:
            spinner.end()
        sources.close()
    counts = f"{counted(made.samples, 'sample')}, {counted(made.files, 'file')}, {human_bytes(made.bytes)}"
    sys.stderr.write(f"wrote {folder}: {counts}; open {os.path.join(folder, 'index.html')}\n")
    return 0


async def _until_signal(sources: Sources, settings: ViewSettings, ready: Callable[[str, str], None]) -> int:
    loop = asyncio.get_running_loop()
    server = asyncio.ensure_future(serve(sources, settings, user_token(), ready))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await server
    return 0


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False
