"""Keep safe: `recover`, `verify`, `doctor`, `gc`, `tag`, `note`."""

from typing import Annotated

import typer

from holdfast.cli.app import (
    Experiment,
    Json,
    RunName,
    RunsToRemove,
    RunToRead,
    Store,
    StoreToRead,
    complete_run,
    complete_status,
)


def recover(
    where: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH|URL", help="The folder of a run, or its URL in a mirror: s3://bucket/evals/exp/run."
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="List what can be recovered, here or below the URL.")] = False,
    output: Annotated[
        str | None, typer.Option(metavar="DIR", help="The store to put it in. Default: as --store.")
    ] = None,
    events: Annotated[
        bool,
        typer.Option(
            "--events/--no-events",
            help="Keep the steps of finished keys, or remove them. Costs and budgets stay as they are.",
        ),
    ] = True,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Add to a run that exists; nothing in it is lost.")
    ] = False,
    cleanup: Annotated[
        bool,
        typer.Option("--cleanup/--no-cleanup", help="Remove the folder that was recovered, once all of it is copied."),
    ] = True,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Restore a run from its mirror or from a copy of its folder.

    Combines every record that is left, in the folder and in its mirror, and reports what was lost. The mirror is not
    changed. Without PATH or URL, or with --list: list what can be recovered. If it is interrupted, repeat the command.

    To continue a run of a mirror, `holdfast resume URL` is enough.
    """
    from holdfast.cli.commands.maintenance import print_recoverable, recover_run
    from holdfast.runs import RecoveryOptions

    if list_ or where is None:
        raise typer.Exit(print_recoverable(where, store, as_json))
    raise typer.Exit(recover_run(where, RecoveryOptions(output or store or "", events, overwrite, cleanup), as_json))


def verify(
    name: RunToRead,
    scores: Annotated[
        bool, typer.Option("--scores", help="Also rebuild the index and compare every reported number; score again.")
    ] = False,
    store: StoreToRead = None,
    as_json: Json = False,
) -> None:
    """Check every byte of a run's journal, plan and data.

    Exit 5 if something is damaged. With --scores, exit 5 also if a number of a report (a mean, an interval, a count,
    tokens, cost) differs from the report of an index rebuilt from the journal, or if a built-in scorer now gives a
    recorded answer another score.
    """
    from holdfast.cli.commands.maintenance import verify_run

    raise typer.Exit(verify_run(name, store, as_json, scores))


def doctor(
    name: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Only this run.", autocompletion=complete_run)
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Fix what is safe to fix.")] = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Find problems in runs, and the command that fixes each."""
    from holdfast.cli.commands.maintenance import diagnose

    raise typer.Exit(diagnose(name, store, fix, as_json))


def gc(
    names: RunsToRemove = None,
    older_than: Annotated[str | None, typer.Option(help="Runs older than this: 12h, 30d, 8w.")] = None,
    keep: Annotated[int | None, typer.Option(min=0, help="All but the newest N of each experiment.")] = None,
    max_size: Annotated[str | None, typer.Option(help="The oldest, until the store has at most this: 10GB.")] = None,
    experiment: Experiment = None,
    status: Annotated[
        list[str] | None,
        typer.Option(
            help="Runs with this status: interrupted, failed, cancelled or completed. Default: completed. Repeatable.",
            autocompletion=complete_status,
        ),
    ] = None,
    tagged_too: Annotated[bool, typer.Option("--tagged-too", help="Also runs that have tags.")] = False,
    latest_too: Annotated[bool, typer.Option("--latest-too", help="Also the newest of an experiment.")] = False,
    mirror: Annotated[bool, typer.Option("--mirror", help="Also their mirrors, which are kept otherwise.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them. Without it they are only listed.")] = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """List old runs, or remove them with --yes.

    Without names and options: the runs that the rules in store.yaml, in the folder of the store, select. A rule has the
    names of the options: retention: [{older_than: 30d}, {status: [interrupted, failed], older_than: 14d}]. A run that
    is not completed is as old as its last record. Live runs, and runs with batch jobs at a server, are never selected.
    """
    from holdfast.cli.commands.maintenance import RemovalMode, remove_runs
    from holdfast.runs import RetentionRule

    rule = RetentionRule(older_than, keep, max_size, experiment, status or "completed", tagged_too, latest_too)
    raise typer.Exit(remove_runs(names or [], rule, store, RemovalMode(yes, mirror), as_json))


def tag(
    name: RunName,
    tags: Annotated[list[str], typer.Argument(metavar="TAG", help="`nightly` adds the tag, `-nightly` removes it.")],
    store: Store = None,
) -> None:
    """Add tags to a run, or remove them."""
    from holdfast.cli.commands.control import tag_run

    raise typer.Exit(tag_run(name, tags, store))


def note(
    name: RunName, text: Annotated[str, typer.Argument(help="The text of the note.")], store: Store = None
) -> None:
    """Add a note to a run."""
    from holdfast.cli.commands.control import note_run

    raise typer.Exit(note_run(name, text, store))
