"""The commands. Each body lives in a module that is imported when the command runs, so that `--help` is fast."""

import os
import sys
from typing import Annotated

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Run LLM evaluations that cannot be lost.\n\nStart with: holdfast demo, holdfast init, holdfast run SPEC.",
)

Spec = Annotated[str, typer.Argument(metavar="SPEC", help="The spec, a YAML file.")]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="A run id, a unique prefix of one, `latest`, or a folder.")]
OtherSpec = Annotated[
    str | None, typer.Argument(metavar="[SPEC]", help="A spec to go on with; default: the one that the run holds.")
]
Store = Annotated[str | None, typer.Option(help="Where runs are kept. Default: $HOLDFAST_STORE, else ./runs.")]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIELD=VALUE", help="Change one field: tasks.NAME.repeats=3. Repeatable."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        from holdfast import __version__

        sys.stdout.write(f"holdfast {__version__}\n")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=_print_version, help="Print the version.")] = False,
) -> None:
    """Run LLM evaluations that cannot be lost.

    Start with: holdfast demo, holdfast init, holdfast run SPEC.
    """


@app.command()
def run(
    spec: Spec,
    run_id: Annotated[str | None, typer.Option("--id", help="The run's id. If it exists, go on with it.")] = None,
    store: Store = None,
    sets: Sets = None,
    limit: Annotated[int | None, typer.Option(help="Only the first N samples of each task.")] = None,
    sample: Annotated[list[str] | None, typer.Option(help="Only the sample with this id. Repeatable.")] = None,
    task: Annotated[list[str] | None, typer.Option(help="Only tasks with this name.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Only models with this name.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be asked.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print JSON.")] = False,
) -> None:
    """Start an evaluation, or go on with one (--id)."""
    from holdfast.cli.running import Choice, run_spec

    choice = Choice(sets or [], limit, sample, task, model)
    if dry_run:
        from holdfast.cli.trying import dry_run as try_it

        raise typer.Exit(try_it(spec, choice, as_json))
    raise typer.Exit(run_spec(spec, run_id, store, choice))


@app.command()
def resume(
    name: RunName,
    spec: OtherSpec = None,
    store: Store = None,
    sets: Sets = None,
    keep_failed: Annotated[bool, typer.Option("--keep-failed", help="Leave failed samples as they are.")] = False,
) -> None:
    """Go on with a run; failed samples are tried again."""
    from holdfast.api import Retry
    from holdfast.cli.running import Choice, resume_run

    raise typer.Exit(resume_run(name, spec, store, Choice(sets or []), Retry(keep=keep_failed)))


@app.command()
def retry(
    name: RunName,
    keys: Annotated[list[str] | None, typer.Argument(metavar="[KEY]...", help="Only these failed keys.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="All failed samples; so it is if nothing is named.")] = False,
    kind: Annotated[list[str] | None, typer.Option(help="Only samples that failed so: timeout, … Repeatable.")] = None,
    store: Store = None,
) -> None:
    """Try failed samples again: all, by kind, or by key."""
    from holdfast.cli.running import retry_run
    from holdfast.errors import UsageError

    if failed and (keys or kind):
        raise UsageError("--failed means all failed samples: leave out --kind and keys, or leave out --failed")
    raise typer.Exit(retry_run(name, keys or [], kind or [], store))


@app.command()
def extend(
    name: RunName,
    spec: OtherSpec = None,
    store: Store = None,
    sets: Sets = None,
    limit: Annotated[int | None, typer.Option(help="The first N samples of each task, more than so far.")] = None,
) -> None:
    """Add repeats, samples, models or tasks to a run, and go on with it."""
    from holdfast.cli.running import Choice, extend_run

    raise typer.Exit(extend_run(name, spec, store, Choice(sets or [], limit)))


@app.command()
def fork(
    name: RunName,
    spec: OtherSpec = None,
    run_id: Annotated[str | None, typer.Option("--id", help="The new run's id.")] = None,
    store: Store = None,
    sets: Sets = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would reuse and ask.")] = False,
) -> None:
    """Start a new run that reuses every recorded step whose request is unchanged."""
    from holdfast.cli.running import Choice, fork_run

    raise typer.Exit(fork_run(name, spec, store, Choice(sets or []), run_id, dry_run))


@app.command()
def cancel(name: RunName, store: Store = None) -> None:
    """Stop a live run from another terminal; what it has is kept."""
    from holdfast.cli.controlling import cancel_run

    raise typer.Exit(cancel_run(name, store))


@app.command()
def tune(name: RunName, sets: Sets = None, store: Store = None) -> None:
    """Change limits of a live run, such as concurrency.samples."""
    from holdfast.cli.controlling import tune_run

    raise typer.Exit(tune_run(name, sets or [], store))


@app.command(context_settings={"ignore_unknown_options": True})
def tag(
    name: RunName,
    tags: Annotated[list[str], typer.Argument(metavar="TAG...", help="`nightly` adds it, `-nightly` takes it away.")],
    store: Store = None,
) -> None:
    """Add tags to a run, or take them away."""
    from holdfast.cli.controlling import tag_run

    raise typer.Exit(tag_run(name, tags, store))


@app.command()
def note(
    name: RunName,
    text: Annotated[str, typer.Argument(help="What you want to remember of it.")],
    store: Store = None,
) -> None:
    """Write a note into a run's journal."""
    from holdfast.cli.controlling import note_run

    raise typer.Exit(note_run(name, text, store))


@app.command()
def check(spec: Spec, sets: Sets = None, as_json: Json = False) -> None:
    """Say whether a spec can be run, without running it."""
    from holdfast.cli.running import Choice, check_spec

    check_spec(spec, Choice(sets or []), as_json)


@app.command()
def ls(
    store: Store = None,
    experiment: Annotated[str | None, typer.Option(help="Only this experiment.")] = None,
    status: Annotated[str | None, typer.Option(help="Only runs with this status.")] = None,
    tag: Annotated[str | None, typer.Option(help="Only runs with this tag.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most the newest N.")] = 50,
    as_json: Json = False,
) -> None:
    """List runs, the newest last."""
    from holdfast.cli.reading import Wanted, print_runs

    print_runs(store, Wanted(experiment, status, tag, limit), as_json)


@app.command()
def show(
    name: RunName,
    key: Annotated[str | None, typer.Argument(metavar="[KEY]", help="task/model/sample/repeat.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="List the samples that failed.")] = False,
    wrong: Annotated[bool, typer.Option("--wrong", help="List the answers with a score of false or 0.")] = False,
    kind: Annotated[list[str] | None, typer.Option(help="List the samples that failed so. Repeatable.")] = None,
    grep: Annotated[str, typer.Option(help="List the samples with this pattern in key, output or error.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="List at most N.")] = 50,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show how a run stands, the whole story of one key, or which samples failed, are wrong, or hold a text."""
    from holdfast.cli.reading import print_chosen, print_key, print_run
    from holdfast.errors import UsageError
    from holdfast.report.choosing import Wanted

    wanted = Wanted(failed, wrong, tuple(kind or ()), grep)
    if key is not None and wanted:
        raise UsageError("name one key, or list keys with --failed, --wrong, --kind or --grep: not both")
    if key is not None:
        print_key(name, key, store, as_json)
    elif wanted:
        print_chosen(name, wanted, limit, store, as_json)
    else:
        print_run(name, store, as_json)


@app.command()
def replay(
    name: RunName,
    key: Annotated[str, typer.Argument(metavar="KEY", help="task/model/sample/repeat.")],
    spec: OtherSpec = None,
    pdb: Annotated[
        bool, typer.Option("--pdb", help="In the debugger: at the solver's first line, and where it raises.")
    ] = False,
    store: Store = None,
) -> None:
    """Run one sample's code again on its recorded steps, without a single request."""
    from holdfast.cli.trying import replay as play

    raise typer.Exit(play(name, key, spec, store, pdb))


@app.command()
def report(name: RunName, store: Store = None, as_json: Json = False) -> None:
    """Print the scores of a run, with their uncertainty."""
    from holdfast.cli.reading import print_report

    print_report(name, store, as_json)


@app.command()
def verify(name: RunName, store: Store = None, as_json: Json = False) -> None:
    """Check every byte of a run's journal, plan and data. Exit 5 if something is damaged."""
    from holdfast.cli.reading import verify_run

    raise typer.Exit(verify_run(name, store, as_json))


@app.command()
def export(
    name: RunName,
    format: Annotated[str, typer.Option(help="jsonl or csv.")] = "jsonl",
    output: Annotated[str | None, typer.Option(help="A file; default: standard output.")] = None,
    store: Store = None,
) -> None:
    """Write one line for each planned key, in plan order.

    key, task, model, sample_id, repeat; status: finished, failed or unfinished; output, error; attempt: which one
    counts; input_tokens, output_tokens, seconds: what that attempt took, replayed steps included; scores.

    In JSONL a score is a value, null if the scorer gave none, or {"failure": {"message": ...}} if the scorer failed.
    In CSV each scorer has a column, and score_errors says which scorers failed and why.
    """
    from holdfast.cli.reading import export_run

    export_run(name, format, output, store)


@app.command()
def doctor(
    name: Annotated[str | None, typer.Argument(metavar="[RUN]", help="Only this run.")] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Mend what is safe to mend.")] = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Say what is wrong with runs, what it means, and the command that mends it."""
    from holdfast.cli.keeping import doctor as look

    raise typer.Exit(look(name, store, fix, as_json))


@app.command()
def gc(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]...", help="These runs, whatever their status.")
    ] = None,
    older_than: Annotated[str | None, typer.Option(help="Completed runs older than this: 12h, 30d, 8w.")] = None,
    keep: Annotated[int | None, typer.Option(min=0, help="All but the newest N of each experiment.")] = None,
    max_size: Annotated[str | None, typer.Option(help="The oldest, until the store has at most this: 10GB.")] = None,
    experiment: Annotated[str | None, typer.Option(help="Only in this experiment.")] = None,
    tagged_too: Annotated[bool, typer.Option("--tagged-too", help="Also runs that have tags.")] = False,
    latest_too: Annotated[bool, typer.Option("--latest-too", help="Also the newest of an experiment.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them; without it they are only shown.")] = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show, or with --yes remove, runs that may go."""
    from holdfast.cli.keeping import Rules
    from holdfast.cli.keeping import gc as collect

    rules = Rules(older_than, keep, max_size, experiment, tagged_too, latest_too)
    raise typer.Exit(collect(names or [], rules, store, yes, as_json))


@app.command()
def schema() -> None:
    """Print the JSON Schema of a spec, for editors."""
    from holdfast.cli.making import print_schema

    print_schema()


@app.command()
def init(folder: Annotated[str, typer.Argument(help="Where to put the files.")] = ".") -> None:
    """Write a small working example: a spec and its data."""
    from holdfast.cli.making import write_example

    write_example(folder)


@app.command()
def demo(
    keep: Annotated[bool, typer.Option(help="Keep the folder that the demo works in.")] = False,
    samples: Annotated[int, typer.Option(min=20, max=20_000, help="How many samples.")] = 300,
) -> None:
    """Run a bundled task, kill it, run it again."""
    from holdfast.cli.demo import run_demo

    raise typer.Exit(run_demo(samples, keep))


def main() -> None:
    """The entry point: our own errors become one sentence and an exit code; a traceback is a bug."""
    from holdfast.errors import HoldfastError

    _read_env_file()
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except HoldfastError as error:
        from holdfast.cli.errors import explain

        sys.exit(explain(error))
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    except OSError as error:
        sys.stderr.write(f"holdfast: {error.filename or 'output'}: {error.strerror}\n")
        sys.exit(2)
    except Exception as error:
        if not hasattr(error, "show") or not hasattr(error, "exit_code"):
            raise
        error.show()  # of the command line itself: it says what is wrong with it
        sys.exit(error.exit_code)


def _read_env_file() -> None:
    """`.env` in the current folder; what is set already wins."""
    if os.path.exists(".env"):
        from holdfast.spec.reading import read_env_file

        for name, value in read_env_file(".env").items():
            os.environ.setdefault(name, value)
