"""`score --list` and `score --set`: the evaluations of a run, and scores that are set by hand."""

import os
import subprocess

from holdfast.api import Run, default_store, find_run
from holdfast.api.control import Wish
from holdfast.api.editing import Edit, edited
from holdfast.api.summaries import EvaluationLine
from holdfast.cli.controlling import write_wish
from holdfast.cli.finding import run_to_read
from holdfast.cli.output import print_json, print_table, say
from holdfast.errors import UsageError
from holdfast.report.grids import Grid

_COLUMNS = ("evaluation", "name", "scorers", "begun", "answers", "scored", "no score", "failures", "by hand", "")
_NUMBERS = _COLUMNS[4:9]
_SECONDS = 5


def list_evaluations(name: str, store: str | None, as_json: bool) -> int:
    with run_to_read(name, store) as run:
        found, run_id = run.evaluations(), run.run_id
    if as_json:
        print_json(found)
    elif not found:
        say(
            f"{run_id} has no evaluation: its tasks have no scorers. Score it with: holdfast score {run_id} --scorers …"
        )
    else:
        print_table(Grid(_COLUMNS, list(map(_row, found)), right=_NUMBERS, whole=("evaluation",)))
    return 0


def set_score(name: str, wanted: tuple[str, str], why: tuple[str, str], evaluation: str, store: str | None) -> int:
    """`wanted`: a key, and SCORER=VALUE; `why`: the reason, and who says so."""
    key, assignment = wanted
    scorer, is_one, value = assignment.rpartition("=")
    if not is_one or not scorer:
        raise UsageError(f"--set {key} {assignment}: write SCORER=VALUE, for example numeric=true")
    reason, author = why
    if not reason.strip():
        raise UsageError("--reason is missing: say why the score is another; it stays with the score for good")
    place = find_run(store or default_store(), name)
    with Run(place) as run:
        score = edited(run, Edit(key, scorer, value, reason, author or _whoever(), evaluation))
    write_wish(place, Wish("score", key=key, score=score))
    told = "no score" if score.value is None else str(score.value)
    say(f"{key}: {scorer} is {told} by {score.author}. What was before: {place.command('show', key)}")
    return 0


def _row(line: EvaluationLine) -> list[str]:
    counts = line.counts
    numbers = (counts.answers, counts.scored, counts.no_score, counts.failures, counts.edited)
    words = [line.evaluation, line.name, ", ".join(line.scorers), line.begun[:19]]
    return [*words, *map(str, numbers), "current" if line.current else ""]


def _whoever() -> str:
    """Who sits here, as far as the machine knows."""
    if user := os.environ.get("USER", "").strip():
        return user
    try:
        asked = subprocess.run(
            ["git", "config", "user.name"], capture_output=True, text=True, check=False, timeout=_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        asked = None
    if asked is not None and asked.stdout.strip():
        return asked.stdout.strip()
    raise UsageError("--by is missing: neither $USER nor git tell who you are")
