"""Scores: `score`, `leaderboard`, `gate`, `cost`."""

from typing import Annotated

import typer

from holdfast.cli.app import (
    AllColumns,
    Evaluation,
    Json,
    RunName,
    RunToRead,
    Sets,
    Store,
    StoreToRead,
    Trust,
    complete_board_format,
    complete_run,
    complete_scorer,
)


def score(
    name: RunName,
    scorers: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE|NAME",
            help="A file of scorers, or a name as in a spec. Default: the run's own.",
            autocompletion=complete_scorer,
        ),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Score whenever the file is saved, show what changed, record nothing.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(metavar="N", help="Only the first N samples of each task: to try a judge.")
    ] = None,
    samples: Annotated[
        list[str] | None, typer.Option("--sample", metavar="ID", help="Only this sample. Repeatable.")
    ] = None,
    wrong: Annotated[
        bool, typer.Option("--wrong", help="Only answers that the first scorer so far scored below the best.")
    ] = False,
    roles: Annotated[
        list[str] | None,
        typer.Option(
            "--role",
            metavar="ROLE=MODEL",
            help="The model of a judge, as PROVIDER/MODEL. Repeatable. Default: the spec's.",
        ),
    ] = None,
    label: Annotated[str, typer.Option("--name", help="A name for the evaluation.")] = "",
    list_: Annotated[bool, typer.Option("--list", help="List the evaluations of the run, and score nothing.")] = False,
    set_: Annotated[
        tuple[str, str] | None,
        typer.Option("--set", metavar="KEY SCORER=VALUE", help="Set one score by hand; null is no score."),
    ] = None,
    reason: Annotated[str, typer.Option(help="With --set: why.")] = "",
    by: Annotated[str, typer.Option(help="With --set: the author. Default: $USER, else git's user.name.")] = "",
    anomalies: Annotated[
        bool, typer.Option("--anomalies", help="Score nothing: look at all answers again for anomalies.")
    ] = False,
    evaluation: Evaluation = "",
    store: Store = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Score saved answers again, without calling the models.

    The scores become a new evaluation of the run; earlier evaluations stay. Scorers that have not changed are not
    called: their scores are copied. If scoring is interrupted, repeat the same command.

    To try a judge, score a part: --limit, --sample and --wrong choose answers for which all given conditions hold. The
    evaluation is then partial: reports say how many answers it covers, and it does not become the current one. The
    same command without them scores the rest, and pays for no answer twice. Another --role is another evaluation.

    A score set by hand replaces the scorer's own, which stays in the run's history. `report` counts such scores, and
    `show RUN KEY` has their author, time and reason. Exit code 1 if a scorer failed on more answers than the spec's
    `fail_on_error` allows, as with `run`.
    """
    from holdfast.cli.commands.score import ScoreOptions, parse_roles, score_or_look
    from holdfast.runs import AnswerSelection, ScoreRequest

    selection = AnswerSelection(limit, tuple(samples or ()), wrong)
    request = ScoreRequest(scorers or (), label, selection, parse_roles(roles or ()))
    options = ScoreOptions(watch, list_, set_, reason, by, anomalies, evaluation, as_json)
    raise typer.Exit(score_or_look(name, request, options, store, trust))


def leaderboard(
    names: Annotated[
        list[str], typer.Argument(metavar="RUN", help="Runs whose models are ranked.", autocompletion=complete_run)
    ],
    task: Annotated[str | None, typer.Option(help="Only this task.")] = None,
    scorer: Annotated[str | None, typer.Option(help="Only this scorer.")] = None,
    evaluation: Evaluation = "",
    format: Annotated[
        str,
        typer.Option(help="table, markdown, latex, html, csv or json.", autocompletion=complete_board_format),
    ] = "table",
    store: StoreToRead = None,
    as_json: Json = False,
) -> None:
    """Rank the models of one or several runs, task by task.

    Several tasks are also shown beside each other: one row per model, one column per task with the result of a
    benchmark or the score of the first scorer, and the mean over the tasks that all models have completed. A model that
    lacks a task has no overall rank.

    A rank is 1 + the number of models that are significantly better. Each pair of models is tested on the keys that
    all models have a score for, at 0.05 after Holm's adjustment. So models that do not differ significantly share a
    rank. A model with missing scores is better only if it would be with all of them wrong. Higher scores are better.

    Models that a pairwise judge compared with a text are ranked by strength (Bradley-Terry) instead: the log-odds of
    beating that text, with intervals. Models that no chain of comparisons connects are in tables of their own.
    """
    from holdfast.cli.commands.leaderboard import LeaderboardOptions, print_boards

    print_boards(names, LeaderboardOptions(task, scorer, evaluation, "json" if as_json else format), store)


def gate(
    name: RunToRead,
    baseline: Annotated[
        str | None, typer.Option(metavar="RUN", help="The run to compare with.", autocompletion=complete_run)
    ] = None,
    margin: Annotated[float | None, typer.Option(help="With --baseline: how much worse may pass: 0.02.")] = None,
    at_least: Annotated[float | None, typer.Option(help="Instead of a baseline: the mean that is required.")] = None,
    confidence: Annotated[float, typer.Option(help="The confidence level of the interval.")] = 0.95,
    if_unsure: Annotated[str, typer.Option(help="The verdict if there is not enough data: fail or pass.")] = "fail",
    missing_max: Annotated[
        int, typer.Option(min=0, help="Accept up to N keys without a score; they count as wrong.")
    ] = 0,
    identical_passes: Annotated[
        bool, typer.Option("--identical-passes", help="Pass if every score is that of the baseline.")
    ] = False,
    task: Annotated[str | None, typer.Option(help="Only this task.")] = None,
    model: Annotated[str | None, typer.Option(help="Only this model.")] = None,
    scorer: Annotated[str | None, typer.Option(help="Only this scorer.")] = None,
    evaluation: Evaluation = "",
    all_columns: AllColumns = False,
    store: StoreToRead = None,
    as_json: Json = False,
) -> None:
    """Exit 7 unless a run is as good as a baseline or a number.

    The verdict depends on the interval of the difference on common keys, or of the mean. It passes if all of the
    interval is at or above the bound, and fails if the whole interval is below it. Otherwise there is not enough data:
    --if-unsure decides, and the output estimates how many samples are needed. Equal scores are not certainty: a few
    ties do not pass, unless --identical-passes accepts them. Every task, model and scorer of the baseline must pass,
    unless you name some. Of a benchmark, only the scorer of its result must pass.

    Exit 7 also if the run has keys without a score: unfinished, failed, no score, the scorer failed, or not planned
    although the baseline has them. With --missing-max some are accepted, if the verdict holds with all of them wrong.

    Exit 2 if the runs cannot be judged: data or scorers differ, the baseline is unfinished, or the baseline has a task
    or model that the run lacks.
    """
    from holdfast.cli.commands.compare import gate_run
    from holdfast.runs import GateOptions

    options = GateOptions(
        baseline,
        at_least,
        margin,
        confidence,
        if_unsure,
        missing_max,
        identical_passes,
        task,
        model,
        scorer,
        evaluation,
    )
    raise typer.Exit(gate_run(name, options, store, as_json, all_columns))


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
    """Print what runs have cost, or estimate what a spec will cost.

    An estimate is a range. It uses the answers of earlier runs of the experiment, else the prompts and max_tokens.
    Prices come from the spec (price: {input, output}) or, with holdfast[prices], from a price list. No request is sent.
    """
    from holdfast.cli.commands.cost import print_costs
    from holdfast.runs import Overrides

    raise typer.Exit(print_costs(names, Overrides(sets or []), store, as_json))
