"""The typer application, the arguments and options that several commands share, and their completions on Tab.

Invariant: importing this module imports nothing else of Holdfast, because every `--help` and every Tab does.
A completion never raises. For it a run is a folder with a journal in it, as in `holdfast.runs.store.lookup`, which
takes much longer to import. Names with characters that are special in a shell are not offered: the shell inserts them
unquoted, and a store may hold runs made by others.
"""

import contextlib
import os
import re
import sys
from collections.abc import Collection, Iterator
from typing import Annotated, Any

import typer
from typer.core import TyperArgument, TyperGroup

_OTHER_NAMES = {
    "ls": "list runs",
    "show": "status logs",
    "run": "start eval evaluate",
    "resume": "continue",
    "cancel": "stop kill",
    "report": "results scores",
    "check": "validate lint",
    "gc": "rm remove delete clean",
    "init": "new",
    "export": "download",
    "--help": "help",
    "--version": "version",
}
"""Our commands, and their names in other tools."""
_SYNONYMS = {name: ours for ours, names in _OTHER_NAMES.items() for name in names.split()}


_SUMMARY_MAX = 500
"""More than any summary has: a test keeps them to one line of a terminal with 80 columns."""


class _Commands(TyperGroup):
    """The top-level command: lists the commands by group, and suggests ours for names that other tools use."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Accept `--color` and `--no-color` anywhere: nobody remembers which options come before the command."""
        end = args.index("--") if "--" in args else len(args)
        first = [each for each in args[:end] if each in ("--color", "--no-color")]
        rest = [each for each in args[:end] if each not in first]
        return super().parse_args(ctx, [*first, *rest, *args[end:]])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in _SYNONYMS and args[0] not in self.commands:
            from holdfast.errors import UsageError

            raise UsageError(f"there is no command {args[0]!r}; you want: holdfast {_SYNONYMS[args[0]]}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List the commands by group. Summaries are never cut with an ellipsis, as typer would do."""
        width = max(map(len, self.commands))  # of all names, so that the groups align
        groups: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            group = getattr(command, "rich_help_panel", None) or "Commands"
            groups.setdefault(group, []).append((name.ljust(width), command.get_short_help_str(_SUMMARY_MAX)))
        for group, rows in groups.items():
            with formatter.section(group):
                formatter.write_dl(rows)


app = typer.Typer(
    cls=_Commands,
    # No colours from click itself (as in --install-completion): our streams would print them as text.
    context_settings={"help_option_names": ["-h", "--help"], "color": False},
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def print_version(requested: bool) -> None:
    if requested:
        from holdfast.version import __version__

        sys.stdout.write(f"holdfast {__version__}\n")
        raise typer.Exit


STATUSES = ("running", "stalled", "interrupted", "completed", "failed", "cancelled", "unreadable")
BOARD_FORMATS = ("table", "markdown", "latex", "html", "csv", "json")
_OFFERED_MAX = 500
_PLAIN = re.compile(r"[\w.,:@%+=/-]+")


def complete_run(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    return offer_runs(ctx.params.get("store"), incomplete)


def offer_runs(store: str | None, incomplete: str) -> list[tuple[str, str]]:
    """The ids of runs with their experiments, newest first, after `latest`."""
    found: list[tuple[float, str, str]] = []
    for experiment, name, at in _runs(store):
        if name.startswith(incomplete):
            found.append((at, name, experiment))
    newest = sorted(found, reverse=True)[:_OFFERED_MAX]
    last = [("latest", "the newest run")] if found and "latest".startswith(incomplete) else []
    return [*last, *((name, experiment) for _, name, experiment in newest)]


def complete_experiment(ctx: typer.Context, incomplete: str) -> list[str]:
    return offer_experiments(ctx.params.get("store"), incomplete)


def offer_experiments(store: str | None, incomplete: str) -> list[str]:
    return sorted({experiment for experiment, _, _ in _runs(store) if experiment.startswith(incomplete)})


def complete_status(incomplete: str) -> list[str]:
    return [status for status in STATUSES if status.startswith(incomplete)]


def complete_format(ctx: typer.Context, incomplete: str) -> list[str]:
    """The formats of `export` or `report`."""
    with contextlib.suppress(Exception):
        from holdfast.report import FORMATS

        command = ctx.info_name
        return [each.name for each in FORMATS if each.kind == command and each.name.startswith(incomplete)]
    return []


def complete_board_format(incomplete: str) -> list[str]:
    """The formats of `leaderboard`."""
    return [each for each in BOARD_FORMATS if each.startswith(incomplete)]


def complete_benchmark(incomplete: str) -> list[tuple[str, str]]:
    """The names of benchmarks."""
    with contextlib.suppress(Exception):  # a broken package of the user must not disturb the shell
        from holdfast.plan import all_benchmarks

        return [(name, each.title) for name, each in all_benchmarks().items() if name.startswith(incomplete)]
    return []


def complete_spec(incomplete: str) -> list[tuple[str, str]]:
    """Specs in files, and benchmarks."""
    return [*_files(incomplete, (".yaml", ".yml", ".json")), *complete_benchmark(incomplete)]


def complete_scorer(incomplete: str) -> list[tuple[str, str]]:
    """The names of scorers, and files with scorers."""
    found = _files(incomplete, (".py", ".yaml", ".yml"))
    with contextlib.suppress(Exception):
        from holdfast.score import SCORERS

        found += [(name, "a scorer") for name in SCORERS if name.startswith(incomplete)]
    return found


def complete_evaluation(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The evaluations of the run that is named."""
    with contextlib.suppress(Exception), _named_run(ctx) as run:
        return [each for each in run.evaluation_names().items() if each[0].startswith(incomplete)]
    return []


def complete_columns(ctx: typer.Context, incomplete: str) -> list[str]:
    """The columns of the first row of the run that is named; after a comma, the next one."""
    before, comma, last = incomplete.rpartition(",")
    with contextlib.suppress(Exception), _named_run(ctx) as run:
        row = next(iter(run.lines(columns=["*"]))).row or {}
        names = [name for name in row if _PLAIN.fullmatch(name) and "," not in name]
        return [f"{before}{comma}{name}" for name in names if name.startswith(last)]
    return []


def _named_run(ctx: typer.Context) -> Any:
    from holdfast.runs import open_run

    name = ctx.params.get("name") or next(iter(ctx.params.get("names") or ctx.args))  # of several, the rest is in args
    return open_run(str(name), store=ctx.params.get("store"))


def _files(incomplete: str, suffixes: tuple[str, ...]) -> list[tuple[str, str]]:
    """Folders, and files with one of the suffixes."""
    above, found = os.path.dirname(incomplete), list[tuple[str, str]]()
    with contextlib.suppress(OSError, ValueError), os.scandir(above or ".") as entries:
        for entry in entries:
            path = os.path.join(above, entry.name)
            is_hidden = entry.name.startswith(".") and not os.path.basename(incomplete)
            if path.startswith(incomplete) and _PLAIN.fullmatch(path) and not is_hidden:
                if entry.is_dir():
                    found.append((f"{path}/", "a folder"))
                elif path.endswith(suffixes):
                    found.append((path, "a file"))
    return sorted(found)


def _runs(store: str | None) -> Iterator[tuple[str, str, float]]:
    """Experiment, id and last change of every run that can be read."""
    from urllib.parse import unquote  # late: `--help` does not need it

    where = store or os.environ.get("HOLDFAST_STORE") or "runs"
    for experiment in _folders(where):
        for run in _folders(experiment.path):
            names = unquote(experiment.name), unquote(run.name)
            if all(map(_PLAIN.fullmatch, names)):
                with contextlib.suppress(OSError):  # a folder without a journal is no run
                    yield *names, os.stat(os.path.join(run.path, "journal")).st_mtime


def _folders(path: str) -> list["os.DirEntry[str]"]:
    with contextlib.suppress(OSError, ValueError), os.scandir(path) as entries:
        return [entry for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
    return []


Specs = Annotated[list[str], typer.Argument(metavar="SPEC", help="The spec, a YAML file; or several.")]
OptionalSpecs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="SPEC",
        help="A spec, a YAML file, or several; or benchmarks, such as gsm8k.",
        autocompletion=complete_spec,
    ),
]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN", help="A run id, a unique prefix of one, `latest`, or a folder.", autocompletion=complete_run
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
        metavar="RUN",
        help="Remove these runs, whatever their status. With --mirror also URLs of runs in a mirror.",
        autocompletion=complete_run,
    ),
]
Experiment = Annotated[str | None, typer.Option(help="Only in this experiment.", autocompletion=complete_experiment)]
RunsToRead = Annotated[
    list[str],
    typer.Argument(
        metavar="RUN",
        help="A run id, a unique prefix of one, `latest`, a folder, or its URL in a mirror; or several.",
        autocompletion=complete_run,
    ),
]
OtherSpec = Annotated[
    str | None, typer.Argument(metavar="SPEC", help="A spec to continue with. Default: the spec stored in the run.")
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
SampleIds = Annotated[
    list[str] | None, typer.Option("--sample", metavar="ID", help="Only the sample with this id. Repeatable.")
]
TaskNames = Annotated[
    list[str] | None, typer.Option("--task", metavar="NAME", help="Only the task with this name. Repeatable.")
]
OneShard = Annotated[str, typer.Option("--shard", metavar="I/N", help="Work on one of N parts of the run. Needs --id.")]
Shards = Annotated[
    int | None, typer.Option("--shards", min=1, metavar="N", help="Work on free parts of N, one by one. Needs --id.")
]
ThisHost = Annotated[bool, typer.Option("--this-host", help="With --shards: all workers run on this machine.")]
Trust = Annotated[
    bool,
    typer.Option(
        "--trust", help="Allow a run made by someone else to execute its code and commands and send its requests."
    ),
]
Evaluation = Annotated[
    str,
    typer.Option(
        help="An evaluation's id, a prefix of it, or its name. Default: the one used last.",
        autocompletion=complete_evaluation,
    ),
]
Columns = Annotated[
    str,
    typer.Option(
        metavar="NAMES",
        help="Add columns of the data rows: names separated by commas, or 'row.*' for all.",
        autocompletion=complete_columns,
    ),
]
Events = Annotated[bool, typer.Option("--events/--no-events", help="Add the steps of every key, or add none.")]
IncludeRestricted = Annotated[
    bool,
    typer.Option("--include-restricted", help="Files also get texts that a benchmark's terms forbid publishing."),
]
AllColumns = Annotated[bool, typer.Option("--all", help="Show all columns of the table.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
NewRunId = Annotated[
    str | None,
    typer.Option(
        "--id", help="The run's id. If the run exists, continue it. With several specs: ID-NAME, NAME of the file."
    ),
]
ModelsToRun = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME", help="Only this model; without a spec, or for a benchmark: PROVIDER/MODEL. Repeatable."
    ),
]
Executor = Annotated[str, typer.Option(metavar="ray", help="With --shards: start the workers on a Ray cluster.")]
Workers = Annotated[
    int | None, typer.Option(min=1, metavar="N", help="With --executor: how many workers. Default: all that fit.")
]
RayAddress = Annotated[
    str,
    typer.Option(help="With --executor: the Ray cluster, or auto. Default: RAY_ADDRESS, else a Ray on this machine."),
]


def rebuild_arguments(context: typer.Context, without: Collection[str]) -> tuple[str, ...]:
    """The command line of a command, without some of its options: for other processes that do the same."""
    arguments: list[str] = [context.info_name or ""]
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name in without or value is None or value == parameter.default or value in ((), []):
            continue
        for each in value if isinstance(value, list | tuple) else [value]:
            if isinstance(parameter, TyperArgument):
                arguments.append(str(each))
            elif isinstance(each, bool):
                arguments += parameter.opts[:1] if each else parameter.secondary_opts[:1]
            else:
                arguments.append(f"{parameter.opts[0]}={each}")
    return tuple(arguments)


def warn_of_refused_variables() -> None:
    """Warn of variables that a `.env` file may never set, such as PATH: it only provides values for the spec."""
    if os.path.exists(".env") and "_HOLDFAST_COMPLETE" not in os.environ:
        from holdfast.spec import refused_variables

        if names := refused_variables():
            is_are = "is" if len(names) == 1 else "are"
            sys.stderr.write(
                f"warning: .env: {', '.join(names)} {is_are} ignored: a .env file only provides keys and other values "
                "for the spec; export it in your shell if you want it\n"
            )
