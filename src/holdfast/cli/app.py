"""The command line as a whole: what is true of all commands, and the arguments that several of them take."""

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

_OTHER_WORDS = {
    "list": "ls",
    "runs": "ls",
    "status": "show",
    "info": "show",
    "logs": "show",
    "start": "run",
    "eval": "run",
    "evaluate": "run",
    "continue": "resume",
    "stop": "cancel",
    "kill": "cancel",
    "results": "report",
    "scores": "report",
    "validate": "check",
    "lint": "check",
    "rm": "gc",
    "remove": "gc",
    "delete": "gc",
    "clean": "gc",
    "new": "init",
    "download": "export",
    "help": "--help",
    "version": "--version",
}
"""What other tools call it."""


class _Commands(TyperGroup):
    """The commands, and what is true of all of them."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """`--color` and `--no-color` may stand anywhere: nobody remembers which options come before the command."""
        end = args.index("--") if "--" in args else len(args)
        first = [each for each in args[:end] if each in ("--color", "--no-color")]
        rest = [each for each in args[:end] if each not in first]
        return super().parse_args(ctx, [*first, *rest, *args[end:]])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in _OTHER_WORDS and args[0] not in self.commands:
            from holdfast.errors import UsageError

            raise UsageError(f"there is no command {args[0]!r}; you want: holdfast {_OTHER_WORDS[args[0]]}")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Run LLM evaluations that cannot be lost.\n\nStart with: holdfast demo, holdfast init, holdfast run SPEC.",
)


def print_version(wanted: bool) -> None:
    if wanted:
        from holdfast.version import __version__

        sys.stdout.write(f"holdfast {__version__}\n")
        raise typer.Exit


def complete_run(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    from holdfast.cli.completion import offer_runs

    return offer_runs(ctx.params.get("store"), incomplete)


def complete_experiment(ctx: typer.Context, incomplete: str) -> list[str]:
    from holdfast.cli.completion import offer_experiments

    return offer_experiments(ctx.params.get("store"), incomplete)


def complete_status(incomplete: str) -> list[str]:
    from holdfast.cli.completion import offer_statuses

    return offer_statuses(incomplete)


Spec = Annotated[str, typer.Argument(metavar="SPEC", help="The spec, a YAML file.")]
MaybeSpec = Annotated[str | None, typer.Argument(metavar="SPEC", help="The spec, a YAML file.")]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run id, a unique prefix of one, `latest`, or a folder.",
        autocompletion=complete_run,
    ),
]
RunToRead = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="A run id, a unique prefix of one, `latest`, a folder, or its URL in a mirror.",
        autocompletion=complete_run,
    ),
]
RunsToRemove = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[RUN]...",
        help="These runs, whatever their status. With --mirror also URLs of runs in a mirror.",
        autocompletion=complete_run,
    ),
]
Experiment = Annotated[str | None, typer.Option(help="Only in this experiment.", autocompletion=complete_experiment)]
RunsToRead = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN...",
        help="A run id, a unique prefix of one, `latest`, a folder, or its URL in a mirror; or several.",
        autocompletion=complete_run,
    ),
]
OtherSpec = Annotated[
    str | None, typer.Argument(metavar="SPEC", help="A spec to go on with; default: the one that the run holds.")
]
Store = Annotated[str | None, typer.Option(help="Where runs are kept. Default: $HOLDFAST_STORE, else ./runs.")]
StoreToRead = Annotated[
    str | None,
    typer.Option(help="Where runs are kept: a folder, or the URL of a mirror. Default: $HOLDFAST_STORE, else ./runs."),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Change one field: tasks.NAME.repeats=3. Repeatable."),
]
Trust = Annotated[
    bool,
    typer.Option("--trust", help="Execute what the spec of a run that is not yours names: code, commands, requests."),
]
Evaluation = Annotated[str, typer.Option(help="An evaluation's id, a prefix of it, or its name. Default: the newest.")]
Events = Annotated[
    bool | None,
    typer.Option("--events/--no-events", help="With the steps of every key, or only of keys that are not finished."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def warn_of_refused_variables() -> None:
    """A `.env` file provides variables that the spec mentions; what it may never set is not ignored silently."""
    if os.path.exists(".env") and "_HOLDFAST_COMPLETE" not in os.environ:
        from holdfast.spec.source.env_file import refused_variables

        if names := refused_variables():
            is_are = "is" if len(names) == 1 else "are"
            sys.stderr.write(
                f"warning: .env: {', '.join(names)} {is_are} ignored: a .env file only provides keys and other values "
                "for the spec; export it in your shell if you want it\n"
            )
