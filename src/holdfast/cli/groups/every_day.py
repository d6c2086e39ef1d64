"""Every day: `run`, `show`, `view`, `report`, `compare`, `ls`."""

from typing import Annotated

import typer

from holdfast.cli.app import (
    AllColumns,
    Columns,
    Evaluation,
    Executor,
    Experiment,
    IncludeRestricted,
    Json,
    ModelsToRun,
    NewRunId,
    OneShard,
    OptionalSpecs,
    RayAddress,
    RunsToRead,
    RunToRead,
    SampleIds,
    Sets,
    Shards,
    Store,
    StoreToRead,
    TaskNames,
    ThisHost,
    Workers,
    complete_format,
    complete_run,
    complete_scorer,
    complete_status,
)


def run(
    context: typer.Context,
    specs: OptionalSpecs = None,
    run_id: NewRunId = None,
    store: Store = None,
    sets: Sets = None,
    limit: Annotated[int | None, typer.Option(help="Only the first N samples of each task.")] = None,
    sample: SampleIds = None,
    task: TaskNames = None,
    model: ModelsToRun = None,
    data: Annotated[str, typer.Option(help="Without SPEC: the data, a .jsonl, .json or .csv file.")] = "",
    prompt: Annotated[str, typer.Option(help="Without SPEC: the prompt, with {column} fields.")] = "",
    system: Annotated[str, typer.Option(help="Without a spec, or for a benchmark: the system message.")] = "",
    scorer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Without SPEC: a scorer. Repeatable.", autocompletion=complete_scorer),
    ] = None,
    base_url: Annotated[str, typer.Option(help="… the base URL of the models' server.")] = "",
    param: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="… a request parameter. Repeatable.")
    ] = None,
    input_column: Annotated[str, typer.Option("--input", help="Without SPEC: the column of the question.")] = "",
    target_column: Annotated[str, typer.Option("--target", help="Without SPEC: the column of the answer.")] = "",
    id_column: Annotated[str, typer.Option("--id-column", help="Without SPEC: the column of sample ids.")] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print the requests; send none.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="With --dry-run: print JSON.")] = False,
    shard: OneShard = "",
    shards: Shards = None,
    this_host: ThisHost = False,
    executor: Executor = "",
    workers: Workers = None,
    address: RayAddress = "",
) -> None:
    """Start an evaluation, or continue one (--id).

    Progress is on standard error: a bar with the time left, scores and cost on a terminal, plain lines elsewhere.

    A benchmark: holdfast run gsm8k --model openai/gpt-x --limit 50. Several benchmarks are tasks of one run.

    --limit, --sample, --task and --model run a part of the spec; `holdfast extend` adds the rest later. Without a SPEC:
    holdfast run --model openai/gpt-x --data f.jsonl --prompt "Compute: {question}" --scorer numeric

    Several specs are checked first and then run one after the other. If one fails, the others are still run; the exit
    code is that of the first that failed. An interrupt, or storage that fails, ends the list.
    """
    from holdfast.cli.adhoc import AdHoc
    from holdfast.cli.commands.run import RunChoice, parse_part, resolve_specs, run_spec, run_specs
    from holdfast.runs import Overrides
    from holdfast.spec import Selection

    texts = {"data": data, "prompt": prompt, "system": system, "base_url": base_url}
    columns = {"input": input_column, "target": target_column, "id": id_column}
    adhoc = AdHoc(models=model or [], scorers=scorer or [], params=param or [], **texts, **columns)
    # Without a spec, --model defines the models; with one, it selects among those of the spec.
    overrides = Overrides(sets or [], Selection(limit, sample or (), task or (), (model or ()) if specs else ()))
    given = resolve_specs(specs or [], adhoc, overrides)
    if dry_run:
        from holdfast.cli.commands.check import print_dry_runs

        raise typer.Exit(print_dry_runs(given, as_json))
    if executor or workers is not None or address:
        from holdfast.cli.executor import parse_executor, run_on_ray

        ray = parse_executor(executor, workers, address, shards)
        part = parse_part(shard, shards, this_host or ray.is_local, run_id, len(given))
        raise typer.Exit(run_on_ray(context, given[0], part, ray, overrides))
    part = parse_part(shard, shards, this_host, run_id, len(given))
    if len(given) > 1:
        raise typer.Exit(run_specs(given, RunChoice(run_id, store, overrides)))
    raise typer.Exit(run_spec(given[0], run_id, store, overrides, part=part))


def show(
    name: RunToRead,
    key: Annotated[str | None, typer.Argument(metavar="KEY", help="task/model/sample/repeat.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="List the samples that failed.")] = False,
    wrong: Annotated[bool, typer.Option("--wrong", help="List the answers with a score of false or 0.")] = False,
    kind: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="List samples with this kind of failure. Repeatable.")
    ] = None,
    grep: Annotated[str, typer.Option(help="List the samples with this pattern in key, output or error.")] = "",
    task: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="List the samples of this task. Repeatable.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="List the samples of this model. Repeatable.")
    ] = None,
    anomaly: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="List the answers with this anomaly. Repeatable.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="List at most N.")] = 50,
    columns: Columns = "",
    full: Annotated[bool, typer.Option("--full", help="With KEY: print long texts whole.")] = False,
    profile: Annotated[bool, typer.Option("--profile", help="Show where the time went, by phase and model.")] = False,
    evaluation: Evaluation = "",
    store: StoreToRead = None,
    as_json: Json = False,
) -> None:
    """Show a run's status, one key's history, or a list of samples.

    With KEY: every attempt, turn by turn. Each turn has the new messages of its request, tool calls with their results,
    tokens, seconds, and the cost if the spec has prices. If a process is working on the key, also what it is doing now.
    """
    from holdfast.cli.commands.show import ListOptions, print_chosen, print_key, print_profile, print_run
    from holdfast.errors import UsageError
    from holdfast.report import KeyFilter, parse_columns

    chosen = KeyFilter(
        failed, wrong, tuple(kind or ()), grep, "", tuple(task or ()), tuple(model or ()), tuple(anomaly or ())
    )
    if key is not None and chosen:
        raise UsageError("name one key, or list keys with --failed, --wrong, --kind, --anomaly or --grep: not both")
    if columns and not chosen:
        raise UsageError("--columns is for lists of samples: add --failed, --wrong, --kind, --anomaly or --grep")
    if profile and (key is not None or chosen):
        raise UsageError("--profile covers a whole run: leave out KEY and the options that list samples")
    if profile:
        print_profile(name, store, as_json)
    elif key is not None:
        print_key(name, key, store, as_json, full, evaluation)
    elif chosen:
        options = ListOptions(limit, parse_columns(columns.split(",")), evaluation)
        print_chosen(name, chosen, options, store, as_json)
    else:
        print_run(name, store, as_json, evaluation)


def report(
    names: RunsToRead,
    evaluation: Evaluation = "",
    format: Annotated[
        str,
        typer.Option(
            help="table, markdown, latex, html, junit or json. Default: that of the file's suffix, else table.",
            autocompletion=complete_format,
        ),
    ] = "",
    output: Annotated[str | None, typer.Option(help="The file to write. Default: standard output.")] = None,
    at_least: Annotated[
        float | None, typer.Option(help="With junit: a score below this fails. Default: false or 0 does.")
    ] = None,
    github: Annotated[
        bool, typer.Option("--github", help="Also append Markdown to the job's summary, $GITHUB_STEP_SUMMARY.")
    ] = False,
    plots: Annotated[str | None, typer.Option(metavar="DIR", help="Also write plots into this folder.")] = None,
    plot_format: Annotated[str, typer.Option(help="The format of plots: png or svg.")] = "png",
    columns: Columns = "",
    all_columns: AllColumns = False,
    include_restricted: IncludeRestricted = False,
    store: StoreToRead = None,
    as_json: Json = False,
) -> None:
    """Print the scores of runs, with confidence intervals.

    --format html writes one file to send to others: a summary, figures, comparisons with p, example answers, failures,
    costs and provenance. --columns adds columns of the data rows to questions in HTML and JUnit. --format latex writes
    a table with booktabs rules. --plots needs holdfast[plots]. Plots show scores with intervals, paired differences,
    cost against score, pass@k of repeats, and response times.

    For CI: --format junit has one test case per key. A wrong answer is a failure, a failed sample is an error, and a
    sample that is unfinished or has no score is skipped. The exit code does not depend on the scores: use
    `holdfast gate` for that.
    """
    from holdfast.cli.commands.report import ReportOptions, print_report
    from holdfast.report import parse_columns

    shown = parse_columns(columns.split(","))
    chosen = "json" if as_json else format
    options = ReportOptions(
        chosen, output, at_least, github, evaluation, plots, plot_format, all_columns, include_restricted, shown
    )
    print_report(names, store, options)


def compare(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN",
            help="Two or more runs; or one run, to compare its models and variants.",
            autocompletion=complete_run,
        ),
    ],
    scorer: Annotated[str | None, typer.Option(help="Only this scorer.")] = None,
    evaluation: Evaluation = "",
    adjust: Annotated[
        str, typer.Option(help="Adjust p values for multiple tests: holm, or bh (Benjamini-Hochberg).")
    ] = "holm",
    limit: Annotated[
        int | None, typer.Option(min=0, help="List at most N changed keys per scorer. Default: 5; in JSON: all.")
    ] = None,
    columns: Columns = "",
    all_columns: AllColumns = False,
    store: StoreToRead = None,
    as_json: Json = False,
) -> None:
    """Compare the scores of runs, or of the models of one run.

    Compares the first run with each other run, by task and scorer, on the keys that both have. Begins with a sentence
    for each comparison: one side is better only if the adjusted p is below 0.05 and missing scores cannot undo it. The
    table has the difference with its interval and adjusted p; --all adds means, p, the effect size (Cohen's dz), and
    the wins, losses and ties of the second run. The test is McNemar's exact test for right-or-wrong scores with one
    answer per sample, else a permutation test.

    Lists the keys that were left out: missing in one run, unfinished, failed, or without a score. Says how far they
    could change the difference, and whether it would still be significant. Warns if the runs are not comparable,
    because rows with the same id differ or scorers with the same name differ. The exit code is still 0.
    """
    from holdfast.cli.commands.compare import CompareOptions, compare_runs
    from holdfast.report import parse_columns

    options = CompareOptions(scorer, evaluation, adjust, limit, all_columns, parse_columns(columns.split(",")))
    compare_runs(names, options, store, as_json)


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
    """List runs, newest last.

    With the URL of a mirror (--store s3://bucket/evals), runs are sorted by their last heartbeat. For runs whose
    process was killed, the records in the mirror are counted.
    """
    from holdfast.cli.commands.show import print_runs
    from holdfast.runs import RunFilter

    print_runs(store, RunFilter(experiment, status, tag, limit), as_json)


def view(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN|STORE|URL",
            help="Runs, stores or mirrors. Default: the store.",
            autocompletion=complete_run,
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for any free one.")] = 7707,
    no_open: Annotated[bool, typer.Option("--no-open", help="Do not open a browser.")] = False,
    edit: Annotated[bool, typer.Option("--edit", help="Allow setting scores by hand.")] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Another name of this machine in addresses. Repeatable."),
    ] = None,
    yes_expose: Annotated[bool, typer.Option("--yes-expose", help="Let other machines connect (see --host).")] = False,
    bundle: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Write the pages as files into this folder instead of serving them."),
    ] = None,
    evaluation: Annotated[
        str, typer.Option(help="With --bundle: the name or id of the evaluation to copy. Default: the newest.")
    ] = "",
    include_restricted: IncludeRestricted = False,
    store: StoreToRead = None,
) -> None:
    """Look at runs in a browser, live.

    Prints the address of the page. Stop it with Ctrl-C.
    """
    from holdfast.cli.commands.view import bundle_runs, view_runs
    from holdfast.errors import UsageError
    from holdfast.view import ViewSettings

    if bundle is not None:
        restricted = {"include_restricted": include_restricted}
        raise typer.Exit(bundle_runs(targets or [], store, bundle, evaluation, **restricted))
    if evaluation:
        raise UsageError("--evaluation is for --bundle; the pages of the viewer have links to each evaluation")
    settings = ViewSettings(host, port, tuple(allow_host or ()), yes_expose, edit)
    raise typer.Exit(view_runs(targets or [], store, settings, opens=not no_open))
