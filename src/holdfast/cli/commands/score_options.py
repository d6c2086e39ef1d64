"""`score` as it is typed. Its bodies are imported when it runs, as those of all commands."""

from typing import Annotated

import typer

from holdfast.cli.app import Evaluation, Json, RunName, Store, Trust


def score(
    name: RunName,
    scorers: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE|NAME", help="A file of scorers, or a name as in a spec. Default: the run's own."),
    ] = None,
    watch: Annotated[
        bool, typer.Option("--watch", help="Show what changes whenever the file is saved; record nothing.")
    ] = False,
    label: Annotated[str, typer.Option("--name", help="What to call the evaluation.")] = "",
    list_: Annotated[bool, typer.Option("--list", help="List the evaluations of the run, and score nothing.")] = False,
    set_: Annotated[
        tuple[str, str] | None,
        typer.Option("--set", metavar="KEY SCORER=VALUE", help="Set one score by hand; null is no score."),
    ] = None,
    reason: Annotated[str, typer.Option(help="With --set: why.")] = "",
    by: Annotated[str, typer.Option(help="With --set: who says so. Default: $USER, else git's user.name.")] = "",
    anomalies: Annotated[
        bool, typer.Option("--anomalies", help="Score nothing: look at all answers again for anomalies.")
    ] = False,
    evaluation: Evaluation = "",
    store: Store = None,
    trust: Trust = False,
    as_json: Json = False,
) -> None:
    """Score a run's answers again, with other scorers, without asking the evaluated models anything.

    The scores become a new evaluation of the run; earlier ones stay. Scores of scorers that have not changed are taken
    over without calling them. The same scorers again go on where they were. A score that is set by hand counts in place
    of the scorer's, which stays in the run's history; report says how many there are, show RUN KEY who, when and why.
    Exit code 1 if a scorer broke on more answers than the spec's `fail_on_error` allows, as with run.
    """
    from holdfast.cli.commands.run import Choice
    from holdfast.cli.commands.score import list_evaluations, look_again, score_run, set_score, watch_scorers
    from holdfast.errors import UsageError

    if list_ + anomalies + (set_ is not None) + bool(scorers or watch or label) > 1:
        raise UsageError(
            "score with --scorers, list with --list, set one score with --set, or look with --anomalies: one at a time"
        )
    if set_ is None and (reason or by or evaluation):
        raise UsageError("--reason, --by and --evaluation go with --set KEY SCORER=VALUE")
    if as_json and not list_:
        raise UsageError("--json goes with --list; for the scores: holdfast report RUN --json")
    if list_:
        raise typer.Exit(list_evaluations(name, store, as_json))
    choice = Choice(trust=trust)
    if anomalies:
        raise typer.Exit(look_again(name, store, choice))
    if set_ is not None:
        raise typer.Exit(set_score(name, set_, (reason, by), evaluation, store))
    if watch:
        raise typer.Exit(watch_scorers(name, scorers or (), store, choice))
    raise typer.Exit(score_run(name, scorers or (), label, store, choice))
