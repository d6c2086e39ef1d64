"""Continue a run or change it while it works: `resume`, `retry`, `extend`, `fork`, `cancel`, `tune`."""

from typing import Annotated

import typer

from holdfast.cli.app import OtherSpec, RunName, RunToRead, Sets, Store, Trust


def resume(
    name: RunToRead,
    spec: OtherSpec = None,
    store: Store = None,
    sets: Sets = None,
    keep_failed: Annotated[bool, typer.Option("--keep-failed", help="Do not retry failed samples.")] = False,
    trust: Trust = False,
) -> None:
    """Continue a run and retry its failed samples.

    RUN may be the URL of a run in a mirror: it is copied into this machine's store first.
    """
    from holdfast.cli.commands.run import resume_run
    from holdfast.runs import Overrides, Retry

    raise typer.Exit(resume_run(name, spec, store, Overrides(sets or [], trust=trust), Retry(keep=keep_failed)))


def retry(
    name: RunName,
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY", help="Only these failed keys.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="All failed samples. This is the default.")] = False,
    kind: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND", help="Only samples with this kind of failure, such as timeout. Repeatable."),
    ] = None,
    store: Store = None,
    trust: Trust = False,
) -> None:
    """Retry failed samples: all, by kind, or by key."""
    from holdfast.cli.commands.run import retry_run
    from holdfast.errors import UsageError
    from holdfast.runs import Overrides, Retry

    if failed and (keys or kind):
        raise UsageError("--failed means all failed samples: leave out --kind and keys, or leave out --failed")
    chosen = Retry(kinds=tuple(kind or ()), keys=tuple(keys or ()))
    raise typer.Exit(retry_run(name, store, Overrides(trust=trust), chosen))


def extend(
    name: RunName,
    spec: OtherSpec = None,
    store: Store = None,
    sets: Sets = None,
    limit: Annotated[int | None, typer.Option(help="The first N samples of each task, more than so far.")] = None,
    trust: Trust = False,
) -> None:
    """Add samples, repeats, models or tasks to a run.

    The new samples are answered at once; existing answers are kept. After a crash, repeat the same command.
    """
    from holdfast.cli.commands.run import extend_run
    from holdfast.runs import Overrides
    from holdfast.spec import Selection

    raise typer.Exit(extend_run(name, spec, store, Overrides(sets or [], Selection(limit), trust)))


def fork(
    name: RunName,
    spec: OtherSpec = None,
    run_id: Annotated[
        str | None, typer.Option("--id", help="The new run's id. If this fork exists, resume it.")
    ] = None,
    store: Store = None,
    sets: Sets = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what it would reuse and send.")] = False,
    trust: Trust = False,
) -> None:
    """Start a new run that reuses every unchanged recorded step.

    With --id the same command can be repeated after a crash: it resumes the fork. Without --id each call makes a fork.
    """
    from holdfast.cli.commands.run import fork_run
    from holdfast.runs import Overrides

    raise typer.Exit(fork_run(name, spec, store, Overrides(sets or [], trust=trust), run_id, dry_run))


def cancel(name: RunName, store: Store = None) -> None:
    """Stop a live run from another terminal, keeping its answers."""
    from holdfast.cli.commands.control import cancel_run

    raise typer.Exit(cancel_run(name, store))


def tune(name: RunName, sets: Sets = None, store: Store = None) -> None:
    """Change limits of a live run, such as concurrency.samples."""
    from holdfast.cli.commands.control import tune_run

    raise typer.Exit(tune_run(name, sets or [], store))
