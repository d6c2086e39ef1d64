"""The commands that weigh runs against each other: `compare`, `leaderboard`, `gate`. `main` puts them among the others.

Each body lives in a module that is imported when the command runs, so that `--help` is fast.
"""

from typing import Annotated

import typer

from holdfast.cli.app import Evaluation, Json, RunToRead, StoreToRead, complete_run


def compare(
    names: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="Two runs or more, also by URL; or one, for its models and variants.",
            autocompletion=complete_run,
        ),
    ],
    scorer: Annotated[str | None, typer.Option(help="Only this scorer.")] = None,
    evaluation: Evaluation = "",
    adjust: Annotated[
        str, typer.Option(help="How ps are adjusted for their number: holm, or bh (Benjamini-Hochberg).")
    ] = "holm",
    limit: Annotated[
        int | None, typer.Option(min=0, help="How many changed keys are shown of each. Default: 5; in JSON: all.")
    ] = None,
    store: StoreToRead = None,
    as_json: Json = False,
) -> None:
    """Show what changed: scores on the keys that both have, and the answers that are scored otherwise.

    The first run with each other one, by task and scorer: the difference with its interval, whether it may be chance
    (McNemar's exact test for right or wrong, once a sample; else a permutation test; p adjusted over the table), its
    size (Cohen's dz), wins, losses and ties of the second. What has no part in it is told: keys that only one has, that
    are not finished, failed or have no score. So is it, in a warning, if the runs are not comparable: rows of the same
    id differ, or a scorer of the same name is another. The exit code is 0 all the same.
    """
    from holdfast.cli.commands.compare import Wanted, compare_runs

    compare_runs(names, Wanted(scorer, evaluation, adjust, limit), store, as_json)


def leaderboard(
    names: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Runs whose models are ranked.", autocompletion=complete_run),
    ],
    task: Annotated[str | None, typer.Option(help="Only this task.")] = None,
    scorer: Annotated[str | None, typer.Option(help="Only this scorer.")] = None,
    evaluation: Evaluation = "",
    format: Annotated[str, typer.Option(help="table, md, csv or json.")] = "table",
    store: StoreToRead = None,
    as_json: Json = False,
) -> None:
    """Rank models, of one run or several: mean, interval, n and cost, task by task.

    A rank is 1 + the number of those that are significantly better: each is tested against each other one on the keys
    that both have, adjusted with Holm's method, at 0.05. So models that cannot be told apart share a rank. A higher
    score is taken as better.
    """
    from holdfast.cli.commands.leaderboard import Wanted, print_boards

    print_boards(names, Wanted(task, scorer, evaluation, "json" if as_json else format), store)


def gate(
    name: RunToRead,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="The run that it is measured by.", autocompletion=complete_run),
    ] = None,
    margin: Annotated[float | None, typer.Option(help="How much worse is good enough: 0.02.")] = None,
    at_least: Annotated[float | None, typer.Option(help="Instead of a baseline: what the mean must reach.")] = None,
    confidence: Annotated[float, typer.Option(help="Of the interval that is judged.")] = 0.95,
    if_unsure: Annotated[str, typer.Option(help="What not enough data means: fail or pass.")] = "fail",
    missing_max: Annotated[int, typer.Option(min=0, help="So many keys without a score are accepted.")] = 0,
    task: Annotated[str | None, typer.Option(help="Only this task.")] = None,
    model: Annotated[str | None, typer.Option(help="Only this model.")] = None,
    scorer: Annotated[str | None, typer.Option(help="Only this scorer.")] = None,
    evaluation: Evaluation = "",
    store: StoreToRead = None,
    as_json: Json = False,
) -> None:
    """Exit 7 unless a run is as good as a baseline, but for a margin, or as a number asks.

    Judged is the interval of the difference on common keys, or of the mean: passed if all of it is at or above the
    bound (not inferior), worse if all of it is below, else there is not enough data, and --if-unsure says what that
    means; about how many samples would decide is told. If no key is scored otherwise, it is passed. Every task, model
    and scorer that the baseline has must pass, unless some are named.

    Exit 7 also if the run has keys without a score: not finished, failed, or a scorer failed. Exit 2 if it cannot be
    judged: other data or other scorers than the baseline's, a baseline that is not finished, or that has what the run
    has not.
    """
    from holdfast.cli.commands.gate import Wanted, gate_run

    wanted = Wanted(baseline, at_least, margin, confidence, if_unsure, missing_max, task, model, scorer, evaluation)
    raise typer.Exit(gate_run(name, wanted, store, as_json))
