"""`score`: score saved answers again, list evaluations, set scores by hand, look for anomalies.

The evaluated models are never called. Interrupted scoring continues with the same command; `--watch` records nothing.
"""

import asyncio
import os
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import msgspec

from holdfast.cli.commands.run import have_scorers_failed
from holdfast.cli.output import hanging, print_json, print_line, print_sentence, print_table, write_message
from holdfast.cli.progress import spinner, watch_scoring
from holdfast.cli.signals import Stopper, run_stoppable
from holdfast.cli.targets import run_to_read
from holdfast.errors import HoldfastError, UsageError
from holdfast.report import (
    ExportLine,
    Grid,
    counted,
    dollars,
    first_line,
    lines_of,
    readable_input,
    report_table,
    shortened,
    value_text,
    without_scorer_name,
)
from holdfast.runs import (
    Edit,
    Given,
    ObservedWork,
    Overrides,
    Run,
    RunLocation,
    Scored,
    ScoreRequest,
    Trial,
    default_store,
    find_author,
    find_run,
    given_to_score,
    resolve_run,
    resolve_scorers,
    score,
    suggest_resume_command,
    try_scorers,
)
from holdfast.runs import rescan_anomalies as look_for_anomalies
from holdfast.runs import set_score as record_score
from holdfast.score import ANOMALIES_VERSION, as_number
from holdfast.spec import Spec, value_of

_LOOK_SECONDS = 0.3
_CHANGED_SHOWN = 10
_EXCERPT = 60
_TEXT_MAX = 240
_NUMBERS = ("mean", "before", "n", "no score", "failed", "changed")
Values = dict[str, dict[str, Any]]
"""The value of each scorer, by key and scorer."""


class ScoreOptions(msgspec.Struct, frozen=True):
    """What to do besides recording an evaluation: at most one of `watch`, `list`, `set` and `anomalies`."""

    watch: bool = False
    list: bool = False
    set: tuple[str, str] | None = None
    reason: str = ""
    by: str = ""
    anomalies: bool = False
    evaluation: str = ""
    as_json: bool = False

    def check(self, request: ScoreRequest) -> None:
        """UsageError for options that do not go together."""
        if self.list + self.anomalies + (self.set is not None) + (self.watch or request != ScoreRequest()) > 1:
            raise UsageError(
                "score with --scorers, list with --list, set one score with --set, or look with --anomalies: "
                "one at a time"
            )
        if self.set is None and (self.reason or self.by or self.evaluation):
            raise UsageError("--reason, --by and --evaluation go with --set KEY SCORER=VALUE")
        if self.as_json and not self.list:
            raise UsageError("--json goes with --list; for the scores: holdfast report RUN --json")
        if self.watch and (request.selection or request.roles):
            problem = "--watch takes no --limit, --sample, --wrong or --role"
            raise UsageError(f"{problem}: it scores all answers, without judges")


def score_or_look(name: str, request: ScoreRequest, options: ScoreOptions, store: str | None, trust: bool) -> int:
    """Do what the options of `score` say. Returns the exit code."""
    options.check(request)
    overrides = Overrides(trust=trust)
    if options.list:
        return list_evaluations(name, store, options.as_json)
    if options.anomalies:
        return find_anomalies(name, store, overrides)
    if options.set is not None:
        return set_score(name, options.set, (options.reason, options.by), options.evaluation, store)
    if options.watch:
        return watch_scorers(name, [str(each) for each in request.scorers], store, overrides)
    return score_run(name, request, store, overrides)


def score_run(name: str, request: ScoreRequest, store: str | None, overrides: Overrides) -> int:
    """Record an evaluation, or continue one that was interrupted."""
    request.selection.check()
    place, given = resolve_run(name, None, store, overrides)
    given = given_to_score(given, place, request)
    work = partial(_score, given, place, request)
    return run_stoppable(work, partial(_print_scored, given.spec), "interrupted before anything was scored")


def parse_roles(texts: Sequence[str]) -> dict[str, Any]:
    """Values of `--role`: ROLE=PROVIDER/MODEL, or ROLE={field: value} as in a spec."""
    found: dict[str, Any] = {}
    for text in texts:
        role, _, given = text.partition("=")
        model = value_of(given, f"--role {role}") if given.lstrip().startswith("{") else given
        is_name = isinstance(model, str) and ("/" in model or ":" in model or model == "mock")
        if not role or not (is_name or isinstance(model, dict)):
            raise UsageError(f"--role {text}: write ROLE=PROVIDER/MODEL, for example --role judge=openai/gpt-x")
        if role in found:
            raise UsageError(f"--role {role} is given twice; a role has one model")
        found[role] = model
    return found


def find_anomalies(name: str, store: str | None, overrides: Overrides) -> int:
    """Look for anomalies in all answers of a run, and record those that are new."""
    place, given = resolve_run(name, None, store, overrides)
    with spinner(f"looking at the answers of {place.run_id}"):
        done = asyncio.run(look_for_anomalies(given, place))
    checked = f"{counted(done.answers, 'answer')} checked with version {ANOMALIES_VERSION} of the list of anomalies"
    write_message(f"{checked}, {done.changed} changed; no request was sent")
    with Run(done.place) as run:
        print_table(report_table(run.report(), done.place.command))
    return 0


async def _score(given: Given, place: RunLocation, request: ScoreRequest, stopper: Stopper) -> Scored:
    async def observe(work: ObservedWork, place: RunLocation) -> None:
        stopper.watch(work, place)
        reading.end()
        await watch_scoring(work, place)

    with spinner(f"reading the answers of {place.run_id}") as reading:
        return await score(given, place, request, observe)


def _print_scored(spec: Spec, done: Scored) -> int:
    if done.selected is not None and not done.selected.ordinals.count:
        write_message(f"no answer is wrong by {done.selected.judge}, so there is nothing to score")
        return 0
    with Run(done.place) as run:
        report = run.report(done.evaluation)
        lines = _chosen_lines(run, done)
    write_message(f"evaluation {done.evaluation}: {'; '.join(_result_parts(spec, done))}")
    print_table(report_table(report, done.place.command))
    if lines:
        print_line("")
    for text in lines:
        print_sentence(text)
    if report.partial is not None:
        print_line("")
        print_line(f"To see it again: {done.place.command('report', '--evaluation', done.evaluation)}")
    elif others := ", ".join(
        f"{each} ({name})" for each, name in report.evaluations.items() if each != done.evaluation
    ):
        print_line("")
        print_sentence(
            f"`report`, `compare` and `gate` now use this evaluation. For another, add --evaluation: {others}"
        )
    if done.left:
        return 6 if done.budget else 130
    return int(have_scorers_failed(report, spec))


def _result_parts(spec: Spec, done: Scored) -> Iterator[str]:
    """What was done, and what is left to do."""
    if done.selected is None:
        yield f"{counted(done.scored, 'answer')} scored"
    else:
        chosen = done.selected.ordinals.count
        by = f", wrong by {done.selected.judge}" if done.selected.judge else ""
        before = chosen - done.scored - done.left
        earlier = f", {before} before" if before else ""
        yield f"{counted(chosen, 'answer')} chosen{by}: {done.scored} scored now{earlier}"
    if done.left and done.budget:
        raised = suggest_resume_command(done.place, f"budget: {done.budget}", spec.limits.run)
        again = f"Raise it with: {raised}; then run the same command to continue"
        yield f"{done.left} left, stopped at a budget: {done.budget}. {again}"
    elif done.left:
        yield f"{done.left} left, run the same command to continue"
    if done.taken:
        yield f"{counted(done.taken, 'score')} of unchanged scorers copied"
    if done.requests:
        cost = "" if done.cost_usd is None else f" ({dollars(done.cost_usd)})"
        yield f"{counted(done.requests, 'request')} to judges{cost}; the evaluated models were not called"
    else:
        yield "no request was sent"


def _chosen_lines(run: Run, done: Scored) -> list[str]:
    """The first chosen answers with question, target, scores and reasons: a judge is tried to see what it says."""
    if done.selected is None:
        return []
    keys, found = set(done.selected.keys), list[str]()
    for line in run.lines(done.evaluation):
        if line.key in keys:
            found += [line.key, *(f"  {each}" for each in _verdict_lines(line))]
            keys.discard(line.key)
        if not keys:
            break
    more = done.selected.ordinals.count - len(done.selected.keys)
    return [*found, f"… and {counted(more, 'more answer')}"] if more else found


def _verdict_lines(line: ExportLine) -> Iterator[str]:
    texts = {"question": readable_input(line), "target": value_text(line.target), "answer": line.output}
    for name, text in texts.items():
        if text:
            yield f"{name}: {shortened(' '.join(text.split()), _TEXT_MAX)}"
    for name, value in line.scores.items():
        reason = shortened(" ".join(line.reasons.get(name, "").split()), _TEXT_MAX)
        yield f"{name}: {_format_score(value, _TEXT_MAX)}{f', {reason}' if reason else ''}"


def watch_scorers(name: str, entries: Sequence[str], store: str | None, overrides: Overrides) -> int:
    """Score again whenever a file is saved, until Ctrl-C. Writes nothing."""
    files = [entry for entry in entries if entry.endswith(".py")]
    if not files:
        raise UsageError("--watch needs a file: add --scorers my_scorers.py")
    place, given = resolve_run(name, None, store, overrides)
    with Run(place) as run:
        before: Values = {line.key: dict(line.scores) for line in run.lines(asked=False) if line.status == "finished"}
    seen: list[float] = []
    print_line(f"watching {', '.join(files)}; nothing is recorded. Ctrl-C to end.")
    try:
        while True:
            if (now := list(map(_saved_at, files))) != seen:
                seen = now
                before = _try_again(place, given, entries, before)
            time.sleep(_LOOK_SECONDS)
    except KeyboardInterrupt:
        options = " ".join(f"--scorers {entry}" for entry in entries)
        print_line("")
        print_line(f"To record it: {place.command('score')} {options}")
        return 0


def _try_again(place: RunLocation, given: Given, entries: Sequence[str], before: Values) -> Values:
    """Score once and print what changed. A file with an error is reported, and tried again when it is saved."""
    print_line("")
    print_line(f"{time.strftime('%H:%M:%S')}", "bold")
    try:
        trials = asyncio.run(try_scorers(place, given, resolve_scorers(entries).scorers))
    except HoldfastError as error:
        for line in lines_of(hanging(str(error))):
            print_line(line, "red")
        return before
    values: Values = {}
    for trial in trials:  # as an export has them
        values[trial.key] = {
            name: given.value
            if given.failure is None
            else {"failure": {"message": without_scorer_name(name, given.failure.message)}}
            for name, given in trial.scores.items()
        }
    rows = []
    for name in dict.fromkeys(name for each in values.values() for name in each):
        now = [each[name] for each in values.values() if name in each]
        earlier = [each[name] for each in before.values() if name in each]
        broken = sum(isinstance(value, dict) for value in now)
        missing = sum(value is None for value in now)
        changed = sum(name in each and _differs(before, values, key, name) for key, each in values.items())
        counts = (str(count or "") for count in (missing, broken, changed))
        rows.append([name, _mean(now), _mean(earlier), str(len(now)), *counts])
    print_table(Grid(["scorer", *_NUMBERS], rows, right=_NUMBERS))
    _print_changed(trials, values, before)
    return values


def _mean(values: Sequence[Any]) -> str:
    numbers = [number for number in map(as_number, values) if number is not None]
    return f"{sum(numbers) / len(numbers):.4f}" if numbers else ""


def _print_changed(trials: Sequence[Trial], values: Values, before: Values) -> None:
    changed = [
        trial for trial in trials if any(_differs(before, values, trial.key, name) for name in values[trial.key])
    ]
    for trial in changed[:_CHANGED_SHOWN]:
        parts = []
        for name, value in values[trial.key].items():
            if _differs(before, values, trial.key, name):
                reason = first_line(trial.scores[name].reason, _EXCERPT)
                because = f" ({reason})" if reason else ""
                parts.append(f"{name} {_format_score(before[trial.key][name])} -> {_format_score(value)}{because}")
        print_line(f"{trial.key}  {', '.join(parts)}")
        print_line(f"    {first_line(trial.beginning, _EXCERPT)}")
    if len(changed) > _CHANGED_SHOWN:
        print_line(f"… and {len(changed) - _CHANGED_SHOWN} more")


def _differs(before: Values, values: Values, key: str, name: str) -> bool:
    return name in before.get(key, {}) and before[key][name] != values[key][name]


def _format_score(value: Any, width: int = _EXCERPT) -> str:
    if isinstance(value, dict):
        return f"failed: {first_line(value['failure']['message'], width)}"
    return "no score" if value is None else str(value)


def _saved_at(path: str) -> float:
    """When a file was saved; 0 while an editor is replacing it."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


_COLUMNS = ("evaluation", "name", "scorers", "begun", "answers", "scored", "no score", "failures", "by hand", "")
_NUMBERS_EVALUATIONS = _COLUMNS[4:9]


def list_evaluations(name: str, store: str | None, as_json: bool) -> int:
    with run_to_read(name, store) as run:
        found, run_id = run.evaluations(), run.run_id
    if as_json:
        print_json(found)
    elif not found:
        print_line(
            f"{run_id} has no evaluation: its tasks have no scorers. Score it with: holdfast score {run_id} --scorers …"
        )
    else:
        rows = []
        for line in found:
            counts = line.counts
            numbers = (counts.answers, counts.scored, counts.no_score, counts.failures, counts.edited)
            texts = [line.evaluation, line.name, ", ".join(line.scorers), line.begun[:19]]
            state = f"partial: {counts.answers} of {line.finished} answers" if line.partial else ""
            rows.append([*texts, *map(str, numbers), "current" if line.current else state])
        print_table(Grid(_COLUMNS, rows, right=_NUMBERS_EVALUATIONS, whole=("evaluation",)))
    return 0


def set_score(name: str, target: tuple[str, str], why: tuple[str, str], evaluation: str, store: str | None) -> int:
    """Set one score by hand. `target`: a key and SCORER=VALUE; `why`: the reason and the author."""
    key, assignment = target
    scorer, is_one, value = assignment.rpartition("=")
    if not is_one or not scorer:
        raise UsageError(f"--set {key} {assignment}: write SCORER=VALUE, for example numeric=true")
    reason, author = why
    if not reason.strip():
        raise UsageError("--reason is missing: say why the score is different; the reason is stored with it")
    place = find_run(store or default_store(), name)
    author = author or find_author()
    if not author:
        raise UsageError("--by is missing: neither $USER nor git has your name")
    score = record_score(place, Edit(key, scorer, value, reason, author, evaluation))
    shown = "no score" if score.value is None else str(score.value)
    print_line(f"{key}: {scorer} is {shown} by {score.author}. Its history: {place.command('show', key)}")
    return 0
