"""The commands. Each body lives in a module that is imported when the command runs, so that `--help` is fast."""

import os
import sys
from typing import Annotated

import typer

from holdfast.cli.app import (
    Evaluation,
    Events,
    Experiment,
    Json,
    MaybeSpec,
    OtherSpec,
    RunName,
    RunsToRead,
    RunsToRemove,
    RunToRead,
    Sets,
    Spec,
    Store,
    StoreToRead,
    Trust,
    complete_run,
    complete_status,
    print_version,
)
from holdfast.cli.app import app as app
from holdfast.cli.commands.compare_options import compare, gate, leaderboard
from holdfast.cli.commands.score_options import score


@app.callback()
def options(
    version: Annotated[bool, typer.Option("--version", callback=print_version, help="Print the version.")] = False,
    color: Annotated[
        bool | None,
        typer.Option("--color/--no-color", help="Colours, or none; default: on a terminal. May stand last."),
    ] = None,
) -> None:
    """Run LLM evaluations that cannot be lost.

    Start with: holdfast demo, holdfast init, holdfast run SPEC.
    """
    if color is not None:
        os.environ.pop("FORCE_COLOR", None)
        os.environ.pop("NO_COLOR", None)
        os.environ["FORCE_COLOR" if color else "NO_COLOR"] = "1"


@app.command()
def run(
    spec: MaybeSpec = None,
    run_id: Annotated[str | None, typer.Option("--id", help="The run's id. If it exists, go on with it.")] = None,
    store: Store = None,
    sets: Sets = None,
    limit: Annotated[int | None, typer.Option(help="Only the first N samples of each task.")] = None,
    sample: Annotated[list[str] | None, typer.Option(help="Only the sample with this id. Repeatable.")] = None,
    task: Annotated[list[str] | None, typer.Option(help="Only the task with this name. Repeatable.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Only the model with this name; without SPEC, PROVIDER/MODEL or mock. Repeatable."),
    ] = None,
    data: Annotated[str, typer.Option(help="Without SPEC: the data, a .jsonl, .json or .csv file.")] = "",
    prompt: Annotated[str, typer.Option(help="Without SPEC: the prompt, with {column} fields.")] = "",
    system: Annotated[str, typer.Option(help="Without SPEC: the system message.")] = "",
    scorer: Annotated[list[str] | None, typer.Option(help="Without SPEC: a scorer. Repeatable.")] = None,
    base_url: Annotated[str, typer.Option(help="Without SPEC: the models' server.")] = "",
    param: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="Without SPEC: a parameter of requests. Repeatable.")
    ] = None,
    input_column: Annotated[str, typer.Option("--input", help="Without SPEC: the column of the question.")] = "",
    target_column: Annotated[str, typer.Option("--target", help="Without SPEC: the column of the answer.")] = "",
    id_column: Annotated[str, typer.Option("--id-column", help="Without SPEC: the column of sample ids.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be asked.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print JSON.")] = False,
) -> None:
    """Start an evaluation, or go on with one (--id).

    A part of it with --limit, --sample, --task or --model; `holdfast extend` makes it the whole. Without a SPEC:
    holdfast run --model openai/gpt-x --data f.jsonl --prompt "Compute: {question}" --scorer numeric
    """
    from holdfast.cli.adhoc import AdHoc
    from holdfast.cli.commands.run import Choice, given_to_run, run_spec
    from holdfast.spec.selection import Selection

    texts = {"data": data, "prompt": prompt, "system": system, "base_url": base_url}
    columns = {"input": input_column, "target": target_column, "id": id_column}
    said = AdHoc(models=model or [], scorers=scorer or [], params=param or [], **texts, **columns)
    choice = Choice(sets or [], Selection(limit, sample or (), task or (), (model or ()) if spec else ()))
    given = given_to_run(spec, said, choice)
    if dry_run:
        from holdfast.cli.commands.dry_run import dry_run as try_it

        raise typer.Exit(try_it(given, as_json))
    raise typer.Exit(run_spec(given, run_id, store, choice))


@app.command()
def resume(
    name: RunToRead,
    spec: OtherSpec = None,
    store: Store = None,
    sets: Sets = None,
    keep_failed: Annotated[bool, typer.Option("--keep-failed", help="Leave failed samples as they are.")] = False,
    trust: Trust = False,
) -> None:
    """Go on with a run; failed samples are tried again.

    By the URL of a run in its mirror, on a machine that does not have it: it is brought into the store here first.
    """
    from holdfast.cli.commands.run import Choice, resume_run
    from holdfast.runs import Retry

    raise typer.Exit(resume_run(name, spec, store, Choice(sets or [], trust=trust), Retry(keep=keep_failed)))


@app.command()
def retry(
    name: RunName,
    keys: Annotated[list[str] | None, typer.Argument(metavar="[KEY]...", help="Only these failed keys.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="All failed samples; so it is if nothing is named.")] = False,
    kind: Annotated[list[str] | None, typer.Option(help="Only samples that failed so: timeout, … Repeatable.")] = None,
    store: Store = None,
    trust: Trust = False,
) -> None:
    """Try failed samples again: all, by kind, or by key."""
    from holdfast.cli.commands.run import Choice, retry_run
    from holdfast.errors import UsageError
    from holdfast.runs import Retry

    if failed and (keys or kind):
        raise UsageError("--failed means all failed samples: leave out --kind and keys, or leave out --failed")
    raise typer.Exit(
        retry_run(name, store, Choice(trust=trust), Retry(kinds=tuple(kind or ()), keys=tuple(keys or ())))
    )


@app.command()
def extend(
    name: RunName,
    spec: OtherSpec = None,
    store: Store = None,
    sets: Sets = None,
    limit: Annotated[int | None, typer.Option(help="The first N samples of each task, more than so far.")] = None,
    trust: Trust = False,
) -> None:
    """Add repeats, samples, models or tasks to a run, and answer them.

    After a crash, repeat the same command: it resumes the extension.
    """
    from holdfast.cli.commands.run import Choice, extend_run
    from holdfast.spec.selection import Selection

    raise typer.Exit(extend_run(name, spec, store, Choice(sets or [], Selection(limit), trust)))


@app.command()
def fork(
    name: RunName,
    spec: OtherSpec = None,
    run_id: Annotated[
        str | None, typer.Option("--id", help="The new run's id. If this fork exists, resume it.")
    ] = None,
    store: Store = None,
    sets: Sets = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what it would reuse and ask.")] = False,
    trust: Trust = False,
) -> None:
    """Start a new run that reuses every recorded step whose request is unchanged.

    With --id the same command can be repeated after a crash: it resumes the fork. Without --id each call makes a fork.
    """
    from holdfast.cli.commands.run import Choice, fork_run

    raise typer.Exit(fork_run(name, spec, store, Choice(sets or [], trust=trust), run_id, dry_run))


@app.command()
def cancel(name: RunName, store: Store = None) -> None:
    """Stop a live run from another terminal; what it has is kept."""
    from holdfast.cli.commands.control import cancel_run

    raise typer.Exit(cancel_run(name, store))


@app.command()
def tune(name: RunName, sets: Sets = None, store: Store = None) -> None:
    """Change limits of a live run, such as concurrency.samples."""
    from holdfast.cli.commands.control import tune_run

    raise typer.Exit(tune_run(name, sets or [], store))


@app.command(context_settings={"ignore_unknown_options": True})
def tag(
    name: RunName,
    tags: Annotated[list[str], typer.Argument(metavar="TAG...", help="`nightly` adds it, `-nightly` takes it away.")],
    store: Store = None,
) -> None:
    """Add tags to a run, or take them away."""
    from holdfast.cli.commands.control import tag_run

    raise typer.Exit(tag_run(name, tags, store))


@app.command()
def note(
    name: RunName,
    text: Annotated[str, typer.Argument(help="What you want to remember of it.")],
    store: Store = None,
) -> None:
    """Write a note into a run's journal."""
    from holdfast.cli.commands.control import note_run

    raise typer.Exit(note_run(name, text, store))


@app.command()
def check(
    spec: Spec,
    sets: Sets = None,
    servers: Annotated[bool, typer.Option("--servers", help="Also ask each server which models it has.")] = False,
    as_json: Json = False,
) -> None:
    """Say whether a spec can be run, without running it.

    Data, columns, prompts, solvers, scorers, providers and key variables are looked at; no model is asked. What is
    wrong ends with exit 2, what is only odd is a warning. With --servers each server gets one request for its list of
    models, and exit 2 says that one is not there or refuses its key; a model that it does not list is a warning.
    """
    from holdfast.cli.commands.check import check_spec
    from holdfast.cli.commands.run import Choice

    raise typer.Exit(check_spec(spec, Choice(sets or []), servers, as_json))


@app.command()
def ls(
    store: StoreToRead = None,
    experiment: Experiment = None,
    status: Annotated[
        str | None, typer.Option(help="Only runs with this status.", autocompletion=complete_status)
    ] = None,
    tag: Annotated[str | None, typer.Option(help="Only runs with this tag.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="At most the newest N.")] = 50,
    as_json: Json = False,
) -> None:
    """List runs, the newest last.

    Of a mirror (--store s3://bucket/evals): as their heartbeats say, the one last heard of last. Of runs that were
    killed, the records in the mirror are counted.
    """
    from holdfast.cli.commands.ls import Wanted, print_runs

    print_runs(store, Wanted(experiment, status, tag, limit), as_json)


@app.command()
def show(
    name: RunToRead,
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="task/model/sample/repeat.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="List the samples that failed.")] = False,
    wrong: Annotated[bool, typer.Option("--wrong", help="List the answers with a score of false or 0.")] = False,
    kind: Annotated[list[str] | None, typer.Option(help="List the samples that failed so. Repeatable.")] = None,
    grep: Annotated[str, typer.Option(help="List the samples with this pattern in key, output or error.")] = "",
    task: Annotated[list[str] | None, typer.Option(help="List the samples of this task. Repeatable.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="List the samples of this model. Repeatable.")] = None,
    anomaly: Annotated[list[str] | None, typer.Option(help="List the answers that are odd so. Repeatable.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="List at most N.")] = 50,
    full: Annotated[bool, typer.Option("--full", help="With KEY: long texts whole, not only their beginning.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Where the time went: phases, percentiles, load.")] = False,
    evaluation: Evaluation = "",
    store: StoreToRead = None,
    as_json: Json = False,
) -> None:
    """Show how a run stands, the whole story of one key, or which samples failed, are wrong, or hold a text.

    Of a key: its attempts, turn by turn: what was new in each request, the calls and what came of them, tokens, cost
    if the spec has prices, seconds; what was recorded before a resume; what it is doing now, if a process works on it.
    """
    from holdfast.cli.commands.show import print_chosen, print_key, print_profile, print_run
    from holdfast.errors import UsageError
    from holdfast.report.selection import Wanted

    where = (tuple(task or ()), tuple(model or ()), tuple(anomaly or ()))
    wanted = Wanted(failed, wrong, tuple(kind or ()), grep, "", *where)
    if key is not None and wanted:
        raise UsageError("name one key, or list keys with --failed, --wrong, --kind, --anomaly or --grep: not both")
    if profile and (key is not None or wanted):
        raise UsageError("--profile is of a whole run: leave out the key, and what lists samples")
    if profile:
        print_profile(name, store, as_json)
    elif key is not None:
        print_key(name, key, store, as_json, full, evaluation)
    elif wanted:
        print_chosen(name, wanted, limit, store, as_json, evaluation)
    else:
        print_run(name, store, as_json, evaluation)


@app.command()
def replay(
    name: RunName,
    key: Annotated[str, typer.Argument(metavar="KEY", help="task/model/sample/repeat.")],
    spec: OtherSpec = None,
    pdb: Annotated[
        bool, typer.Option("--pdb", help="In the debugger: at the solver's first line, and where it raises.")
    ] = False,
    store: Store = None,
    trust: Trust = False,
) -> None:
    """Run one sample's code again on its recorded steps, without a single request."""
    from holdfast.cli.commands.dry_run import replay as play
    from holdfast.cli.commands.run import Choice

    raise typer.Exit(play(name, key, spec, store, Choice(trust=trust), pdb))


app.command()(score)


app.command()(compare)
app.command()(leaderboard)
app.command()(gate)


@app.command()
def report(
    names: RunsToRead,
    evaluation: Evaluation = "",
    format: Annotated[str, typer.Option(help="table, markdown, latex, html, junit or json.")] = "table",
    output: Annotated[str | None, typer.Option(help="A file; default: standard output.")] = None,
    at_least: Annotated[
        float | None, typer.Option(help="With junit: a score below this fails. Default: false or 0 does.")
    ] = None,
    github: Annotated[
        bool, typer.Option("--github", help="Also append Markdown to the job's summary, $GITHUB_STEP_SUMMARY.")
    ] = False,
    plots: Annotated[str | None, typer.Option(metavar="DIR", help="Also draw figures, into this folder.")] = None,
    plot_format: Annotated[str, typer.Option(help="Of figures: png or svg.")] = "png",
    store: StoreToRead = None,
    as_json: Json = False,
) -> None:
    """Print the scores of runs, with their uncertainty.

    For papers: --format latex is a table with booktabs rules. To pass on: --format html is one file with tables,
    figures, failures, cost and origin, which asks for nothing from elsewhere. Figures show scores with intervals,
    paired differences (between the models and variants of a run, or the first run and each other), cost against score,
    pass@k of repeats, and the seconds of answers; they need holdfast[plots].

    For CI: --format junit has a test case for each key; a wrong answer is a failure, a failed sample an error, an
    unfinished one is skipped. The exit code says nothing of the scores.
    """
    from holdfast.cli.commands.report import Paper, print_report

    chosen = "json" if as_json else format
    print_report(names, store, Paper(chosen, output, at_least, github, evaluation, plots, plot_format))


@app.command()
def cost(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...|SPEC", help="Runs, whose costs are summed; or a spec.", autocompletion=complete_run
        ),
    ],
    sets: Sets = None,
    store: StoreToRead = None,
    as_json: Json = False,
) -> None:
    """Print what runs have cost, by task and model; or, of a SPEC, about what it will cost.

    An estimate is a range: by the answers of earlier runs of the experiment, else by the prompts and max_tokens. Prices
    are those of the spec (price: {input, output}), or, with holdfast[prices], those of a list. Nothing is asked.
    """
    from holdfast.cli.commands.cost import print_costs
    from holdfast.cli.commands.run import Choice

    raise typer.Exit(print_costs(names, Choice(sets or []), store, as_json))


@app.command()
def verify(
    name: RunToRead,
    scores: Annotated[
        bool, typer.Option("--scores", help="Also rebuild the index and compare every reported number; score again.")
    ] = False,
    store: StoreToRead = None,
    as_json: Json = False,
) -> None:
    """Check every byte of a run's journal, plan and data. Exit 5 if something is damaged.

    With --scores, exit 5 also if a number of a report (a mean, an interval, a count, tokens, cost) differs from the
    report of an index rebuilt from the journal, or if a built-in scorer gives a recorded answer another score now.
    """
    from holdfast.cli.commands.verify import verify_run

    raise typer.Exit(verify_run(name, store, as_json, scores))


@app.command()
def export(
    name: RunToRead,
    format: Annotated[str, typer.Option(help="jsonl, csv or parquet.")] = "jsonl",
    output: Annotated[str | None, typer.Option(help="A file; default: standard output.")] = None,
    events: Events = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only the samples that failed.")] = False,
    wrong: Annotated[bool, typer.Option("--wrong", help="Only the answers with a score of false or 0.")] = False,
    kind: Annotated[list[str] | None, typer.Option(help="Only the samples that failed so. Repeatable.")] = None,
    grep: Annotated[str, typer.Option(help="Only the samples with this pattern in key, output or error.")] = "",
    task: Annotated[list[str] | None, typer.Option(help="Only the samples of this task. Repeatable.")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Only the samples of this model. Repeatable.")] = None,
    anomaly: Annotated[list[str] | None, typer.Option(help="Only the answers that are odd so. Repeatable.")] = None,
    evaluation: Evaluation = "",
    store: StoreToRead = None,
) -> None:
    """Write one line for each planned key, or for those that are chosen, in plan order.

    key, task, model, sample_id, repeat; status: finished, failed or unfinished; output, error; attempt: which one
    counts; input_tokens, output_tokens, seconds: what that attempt took, replayed steps included; scores; reasons: what
    scorers said of them.

    In JSONL a score is a value, null if the scorer gave none, or {"failure": {"message": ...}} if the scorer failed;
    finish_reason and tool_calls are the model's; scores_edited has the history of scores that were set by hand; group
    is what the row has in the column that dataset.group names. In CSV
    and Parquet each scorer has a column, score_errors says which scorers failed and why, and edited which scores were
    set by hand, and by whom. CSV is for spreadsheets: a text that could be a formula (it begins with =, +, - or @, and
    is no number) has a quote before it. Parquet has typed columns, needs --output, and holdfast[parquet].

    --events adds to each line of JSONL: events, the records of the key's steps (docs/format.md), and messages, the
    last conversation with the model, whole. --no-events leaves them out (null) for finished keys, whose answer is on
    the line anyway, and keeps them for those that failed or are not finished. Both stream, whatever the run's size.
    """
    from holdfast.cli.commands.show import Sheet, export_run
    from holdfast.report.selection import Wanted

    where = (tuple(task or ()), tuple(model or ()), tuple(anomaly or ()))
    wanted = Wanted(failed, wrong, tuple(kind or ()), grep, "", *where)
    export_run(name, Sheet(format, output, events, evaluation), store, wanted)


@app.command()
def recover(
    where: Annotated[
        str | None,
        typer.Argument(
            metavar="PATH|URL", help="The folder of a run, or its URL in a mirror: s3://bucket/evals/exp/run."
        ),
    ] = None,
    list_: Annotated[bool, typer.Option("--list", help="Show what can be recovered, here or below the URL.")] = False,
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
        bool, typer.Option("--overwrite", help="Add to a run that is there; it loses nothing.")
    ] = False,
    cleanup: Annotated[
        bool,
        typer.Option("--cleanup/--no-cleanup", help="Remove a folder that was recovered from, if all of it is here."),
    ] = True,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Bring back a run whose machine or folder is gone, from its mirror or from a copy.

    Everything that is left is united, and what was lost is told; the mirror stays as it is. Of a folder, its mirror is
    asked too. Without PATH or URL, or with --list: show what there is. It can be cut off and started again.

    Only to go on with a run of a mirror, `holdfast resume URL` is enough.
    """
    from holdfast.cli.commands.recover import bring_back, list_all
    from holdfast.runs.mirror.recovery import Wanted

    if list_ or where is None:
        raise typer.Exit(list_all(where, store, as_json))
    wanted = Wanted(output or store or "", events, overwrite, cleanup)
    raise typer.Exit(bring_back(where, wanted, as_json))


@app.command()
def doctor(
    name: Annotated[
        str | None, typer.Argument(metavar="RUN", help="Only this run.", autocompletion=complete_run)
    ] = None,
    fix: Annotated[bool, typer.Option("--fix", help="Mend what is safe to mend.")] = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Say what is wrong with runs, what it means, and the command that mends it."""
    from holdfast.cli.commands.maintenance import doctor as look

    raise typer.Exit(look(name, store, fix, as_json))


@app.command()
def gc(
    names: RunsToRemove = None,
    older_than: Annotated[str | None, typer.Option(help="Completed runs older than this: 12h, 30d, 8w.")] = None,
    keep: Annotated[int | None, typer.Option(min=0, help="All but the newest N of each experiment.")] = None,
    max_size: Annotated[str | None, typer.Option(help="The oldest, until the store has at most this: 10GB.")] = None,
    experiment: Experiment = None,
    tagged_too: Annotated[bool, typer.Option("--tagged-too", help="Also runs that have tags.")] = False,
    latest_too: Annotated[bool, typer.Option("--latest-too", help="Also the newest of an experiment.")] = False,
    mirror: Annotated[bool, typer.Option("--mirror", help="Their mirrors too, which stay without it.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Remove them; without it they are only shown.")] = False,
    store: Store = None,
    as_json: Json = False,
) -> None:
    """Show, or with --yes remove, runs that may go."""
    from holdfast.cli.commands.maintenance import Removal, Rules
    from holdfast.cli.commands.maintenance import gc as collect

    rules = Rules(older_than, keep, max_size, experiment, tagged_too, latest_too)
    raise typer.Exit(collect(names or [], rules, store, Removal(yes, mirror), as_json))


@app.command()
def schema() -> None:
    """Print the JSON Schema of a spec, for editors."""
    from holdfast.cli.commands.init import print_schema

    print_schema()


@app.command()
def init(folder: Annotated[str, typer.Argument(help="Where to put the files.")] = ".") -> None:
    """Write a small working example: a spec and its data."""
    from holdfast.cli.commands.init import write_example

    write_example(folder)


@app.command()
def demo(
    keep: Annotated[bool, typer.Option(help="Keep the folder that the demo works in.")] = False,
    samples: Annotated[int, typer.Option(min=20, max=20_000, help="How many samples.")] = 300,
) -> None:
    """Run a bundled task, kill it, run it again."""
    from holdfast.cli.commands.demo import run_demo

    raise typer.Exit(run_demo(samples, keep))


_STORAGE_ERRORS_OF_SQLITE = (8, 10, 13)  # SQLITE_READONLY, SQLITE_IOERR, SQLITE_FULL, without their details


def main() -> None:
    """The entry point: our own errors become one sentence and an exit code; a traceback is a bug."""
    from holdfast.cli.app import warn_of_refused_variables
    from holdfast.cli.run_argument import DAMAGED, DamageNotices
    from holdfast.cli.streams import install_streams
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
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in _STORAGE_ERRORS_OF_SQLITE:
            sys.stderr.write(f"holdfast: a derived file (index or catalogue) cannot be written: {error}\n")
            sys.exit(8)
        if not hasattr(error, "show") or not hasattr(error, "exit_code"):
            raise
        if hasattr(error, "message"):  # cleaned here, because typer drops some escape sequences without a trace
            error.message = clean(error.message)
        error.show(file=sys.stderr)  # of the command line itself: it says what is wrong with it
        sys.exit(error.exit_code)
