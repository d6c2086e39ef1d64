"""The command `holdfast`: the table of commands, and the entry point.

To add a command, define it in a module of `holdfast.cli.groups` and add it to COMMANDS.
"""

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from holdfast.cli.app import app, print_version
from holdfast.cli.groups import data, elsewhere, every_day, lifecycle, safety, scores

__all__ = ["COMMANDS", "app", "main"]

COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Every day": (every_day.run, every_day.show, every_day.view, every_day.report, every_day.compare, every_day.ls),
    "Continue": (lifecycle.resume, lifecycle.retry, lifecycle.extend, lifecycle.fork, lifecycle.cancel, lifecycle.tune),
    "Scores": (scores.score, scores.leaderboard, scores.gate, scores.cost),
    "Data in and out": (data.benchmarks, data.export, data.init, data.info, data.schema, data.check),
    "Keep safe": (safety.recover, safety.verify, safety.doctor, safety.gc, safety.tag, safety.note),
    "Elsewhere": (elsewhere.launch, elsewhere.merge, elsewhere.replay, elsewhere.demo),
}
"""Every command, by the group that `--help` lists it in. Its summary is the first sentence of its docstring."""

_SETTINGS: dict[str, dict[str, Any]] = {
    # `-nightly` removes a tag: it is not an option, nor a group of short options, of which `-h` would be one.
    "tag": {"ignore_unknown_options": True, "help_option_names": ["--help"]}
}

for group, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=group, context_settings=_SETTINGS.get(command.__name__))(command)


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=print_version, help="Print the version.")] = False,
    color: Annotated[
        bool | None,
        typer.Option("--color/--no-color", help="Use colours or not. Default: only on a terminal. Allowed anywhere."),
    ] = None,
) -> None:
    """Run LLM evaluations that survive crashes.

    Start with: holdfast demo, holdfast init, holdfast run SPEC.
    """
    if color is not None:
        os.environ.pop("FORCE_COLOR", None)
        os.environ.pop("NO_COLOR", None)
        os.environ["FORCE_COLOR" if color else "NO_COLOR"] = "1"


_SQLITE_STORAGE_ERRORS = (8, 10, 13)
"""SQLITE_READONLY, SQLITE_IOERR, SQLITE_FULL: the low byte of an extended error code."""


def main() -> None:
    """Run the command; print an expected error as one sentence and exit with its code. A traceback means a bug."""
    from holdfast.cli.app import warn_of_refused_variables
    from holdfast.cli.streams import DAMAGED, DamageNotices, install_streams
    from holdfast.errors import DamagedError, HoldfastError
    from holdfast.printable import clean

    install_streams()
    warn_of_refused_variables()
    notices = DamageNotices()
    try:
        with notices.watch():
            code = app(standalone_mode=False) or 0
        sys.exit(notices.exit_code(code))
    except DamagedError as error:
        notices.add(str(error))
        sys.exit(DAMAGED)
    except HoldfastError as error:
        from holdfast.cli.errors import explain

        sys.exit(explain(error))
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except OSError as error:
        from holdfast.cli.errors import explain_os_error

        sys.exit(explain_os_error(error))
    except Exception as error:
        # sqlite3 is not imported here, because `--help` does not need it: its errors are known by their attribute.
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _SQLITE_STORAGE_ERRORS:
            sys.stderr.write(f"holdfast: a derived file (index or catalogue) cannot be written: {error}\n")
            sys.exit(8)
        if not hasattr(error, "show") or not hasattr(error, "exit_code"):
            raise
        # A usage error of the command line parser, which has no public base class.
        if hasattr(error, "message"):  # cleaned here, because typer drops some escape sequences without a trace
            error.message = clean(error.message)
        error.show(file=sys.stderr)
        sys.exit(error.exit_code)
