"""Scores the recorded answers of a run, as a new evaluation or as a trial, and sets single scores by hand.

The evaluated models are never called. After a crash, the same scorers continue with the answers that they have not
scored, because an evaluation is identified by its scorers. The status of the run never changes. A trial writes nothing.

A part of the answers (`AnswerSelection`) is scored in the same evaluation in which all would be. So scores and judge
replies that are recorded for a part, also by a process that was killed, are not paid for again when the rest is scored.
Until every answer has been scored, such an evaluation is partial: it is not the current one, and reports say so.
"""

import asyncio
import contextlib
import math
import os
import re
import subprocess
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

import msgspec

from holdfast.engine import (
    AnomalyScan,
    AnswerToScore,
    Progress,
    RunCounts,
    Tickets,
    apply_scorer,
    batches_for,
    secrets_of,
    sources_of,
)
from holdfast.errors import SpecError, UsageError, storage_errors
from holdfast.journal import Lease, Reader, this_process, write_lease
from holdfast.models import identity_of
from holdfast.records import GivenModel, ScoreGiven
from holdfast.runs.execution.answer_selection import AnswerSelection, AnswerSelector, SelectedAnswers
from holdfast.runs.execution.preparation import (
    Given,
    Prepared,
    find_scorers,
    has_declared_roles,
    prefix_errors,
    refuse_missing_keys,
)
from holdfast.runs.execution.resume import Reading, claim, open_claimed, read_and_prepare, stored_spec
from holdfast.runs.execution.session import (
    Observe,
    RunSession,
    ScoringStart,
    close_quietly,
    engine_for,
    run_observed,
)
from holdfast.runs.overrides import assignments
from holdfast.runs.run import Run
from holdfast.runs.shards.copy import readable
from holdfast.runs.store.damage import require_originals, require_started
from holdfast.runs.store.lookup import RunLocation
from holdfast.score import Entry, Scorer, resolve, scorers_in
from holdfast.spec import (
    TEXT_BYTES_MAX,
    change_spec,
    fill_environment,
    fill_roles,
    nearest,
    nearest_file,
    parse_yaml,
    spec_mapping,
)
from holdfast.state import Fold, Index, recorded_answer

_EXCERPT = 200


class ScoreRequest(msgspec.Struct, frozen=True):
    """What `score` is to do."""

    scorers: Sequence[Entry] = ()
    """Default: the run's own."""
    name: str = ""
    selection: AnswerSelection = AnswerSelection()
    roles: Mapping[str, Any] = {}
    """Models of roles, as in a spec: `openai/gpt-x`, or a mapping of fields. Default: those of the run's spec."""


class Scored(msgspec.Struct, frozen=True):
    """The result of scoring a run: how many answers were scored now, and how many are left."""

    place: RunLocation
    evaluation: str
    scored: int = 0
    left: int = 0
    """Of the chosen answers."""
    taken: int = 0
    """Scores copied from earlier evaluations without calling their scorers."""
    requests: int = 0
    """Requests to judges."""
    cost_usd: float | None = None
    """The cost of these requests; None if a judge has no price."""
    budget: str = ""
    """The run limit at which scoring stopped; empty if none was reached."""
    selected: SelectedAnswers | None = None
    """None: all answers."""


class Trial(msgspec.Struct, frozen=True):
    """The unrecorded scores of one answer."""

    key: str
    beginning: str
    """The first characters of the answer."""
    scores: dict[str, ScoreGiven]
    """By scorer name. A scorer that raised has its failure here."""


def with_scorers(given: Given, scorers: Sequence[Scorer], file: str = "") -> Given:
    """Replace the scorers of every task. `file`: the YAML file that they come from, if there is one."""
    own = {task.name: list(scorers) for task in given.spec.tasks}
    return msgspec.structs.replace(given, scorers=own, scorers_file=file)


def given_to_score(given: Given, place: RunLocation, request: ScoreRequest) -> Given:
    """The spec of a run with the scorers and the models of roles that a user names."""
    roles = dict(request.roles)
    if request.scorers:
        found = resolve_scorers(request.scorers)
        given, roles = with_scorers(given, found.scorers, found.file), {**found.roles, **roles}
    else:
        given = msgspec.structs.replace(given, scorers_file="")
    # Functions that a Python program passed are not stored in the run.
    if not any(given.scorers.values()) and not any(task.scorers for task in given.spec.tasks):
        raise UsageError(f"{place.run_id} stores no scorers; name some: {place.command('score')} --scorers FILE|NAME")
    return with_roles(given, roles) if roles else given


def with_roles(given: Given, roles: Mapping[str, Any]) -> Given:
    """Replace the models of roles. UsageError for a role that no scorer calls, SpecError for a model that cannot be
    used.
    """
    _refuse_unused_roles(roles, [each for every in find_scorers(given, judged=False).values() for each in every])
    fill_environment({"roles": dict(roles)})
    sets = assignments({f"roles.{name}": value for name, value in roles.items()})
    try:
        return msgspec.structs.replace(given, spec=change_spec(spec_mapping(given.spec), sets))
    except SpecError as error:
        only = next(iter(roles)) if len(roles) == 1 else ""  # msgspec does not say which
        text = str(error).removeprefix(": ").replace("roles[...]", f"--role {only}".strip())
        raise SpecError(re.sub(r"(--set )?roles\.(?=\S)", "--role ", text)) from error


def _refuse_unused_roles(roles: Iterable[str], scorers: Sequence[Scorer]) -> None:
    judges = [each for each in scorers if each.needs_ctx]
    if not all(map(has_declared_roles, judges)):
        return  # the user's code may call any role
    called = {role for each in judges for role in each.roles()}
    for role in roles:
        if role not in called:
            why = f"no scorer calls this role{nearest(role, called)}" if called else "no scorer calls a model"
            raise UsageError(f"--role {role}: {why}")


class ResolvedScorers(msgspec.Struct, frozen=True):
    """Scorers that a user names, and the models of roles in their YAML files. `file`: the last such file."""

    scorers: list[Scorer]
    roles: dict[str, Any] = {}
    file: str = ""


def resolve_scorers(entries: Sequence[Entry]) -> ResolvedScorers:
    """Resolve scorers that a user names: as in a spec, Python files, YAML files, or functions. A YAML file holds a list
    of scorers as a spec does, or a mapping of `scorers` and `roles`.
    """
    found: list[Scorer] = []
    roles: dict[str, Any] = {}
    path = ""
    for entry in entries:
        if not isinstance(entry, str):
            found.append(resolve(entry, "scorers"))
        elif entry.endswith(".py"):
            found += scorers_in(entry)
        elif entry.endswith((".yaml", ".yml")):
            path = entry
            content = _read_scorers(path)
            roles |= content.roles
            found += [resolve(each, f"{entry}[{index}]") for index, each in enumerate(content.scorers)]
        else:
            parsed: Any = parse_yaml(entry, "--scorers") if entry.startswith("{") else entry
            found.append(resolve(parsed, "--scorers"))
    names = [scorer.name for scorer in found]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--scorers: there are two scorers called {name!r}; rename one of them")
    return ResolvedScorers(found, roles, path)


class _ScorersFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    scorers: list[Any]
    roles: dict[str, Any] = {}


def _read_scorers(path: str) -> _ScorersFile:
    try:
        with open(path, encoding="utf-8") as file:
            content = parse_yaml(file.read(TEXT_BYTES_MAX + 1), path)
    except FileNotFoundError as error:
        raise UsageError(f"--scorers: {path}: no such file{nearest_file(path)}") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--scorers: {path} cannot be read ({error})") from error
    try:
        found = msgspec.convert({"scorers": content} if isinstance(content, list) else content, _ScorersFile)
    except msgspec.ValidationError:
        found = _ScorersFile([])
    if not found.scorers:
        raise UsageError(
            f"--scorers: {path} must hold a list of scorers, as under `scorers` in a spec, or a mapping of `scorers` "
            "and `roles`"
        )
    fill_environment({"roles": found.roles})
    return msgspec.structs.replace(found, roles=fill_roles(found.roles, path))


class ShardPart(msgspec.Struct, frozen=True):
    """The answers of a shard that are scored, chosen among those of the whole run."""

    selected: SelectedAnswers
    is_part: bool
    """Whether answers of the run, of this shard or of another, are left without scores."""


async def score(
    given: Given,
    place: RunLocation,
    request: ScoreRequest | None = None,
    observe: Observe | None = None,
    part: ShardPart | None = None,
) -> Scored:
    """Score every answer that the scorers in `given` have not scored yet, or those that `request` chooses, and record
    the scores. `given` is from `given_to_score`. `part`: of a shard.
    """
    request = request or ScoreRequest()
    prepared, reading = await asyncio.to_thread(read_and_prepare, given, place)
    require_started(place, reading.fold)
    await asyncio.to_thread(require_originals, place, reading.fold.story)
    reading.fold.judge_again()
    selected = part.selected if part else await asyncio.to_thread(select_answers, prepared, reading, request.selection)
    if _is_nothing_to_do(prepared, reading.fold, request, selected):
        return Scored(place, reading.fold.evaluation, selected=selected)
    with prefix_errors(given):
        refuse_missing_keys(prepared.spec, roles=_called_roles(prepared, reading.fold))
    async with _writing(prepared, reading, observe) as session:
        reading.fold.judge_again()
        is_part = selected is not None and _narrow(reading.fold, selected)
        chosen = str(request.selection) if (part.is_part if part else is_part) else ""
        start = ScoringStart(request.name, chosen, _given_models(prepared, reading.fold))
        engine = await engine_for(session, reading.fold, start)
        before = engine.budget.spent
        async with _leased(session, reading.fold):
            await run_observed(session, engine)
    spent = engine.budget.spent - before
    progress, roles = engine.progress, session.prepared.spec.roles
    # Answers of tasks without scorers count as unscored if a Python program scored them with functions, which are not
    # stored. Nothing is left to do for them.
    skipped = [cell for cell in reading.fold.story.cells if not session.prepared.scorers[cell.task]]
    unscorable = sum(
        ordinal in reading.fold.unscored for cell in skipped for ordinal in range(cell.first, cell.first + cell.count)
    )
    return Scored(
        place=session.place,
        evaluation=reading.fold.evaluation,
        scored=progress.scored,
        left=len(reading.fold.unscored) - unscorable - progress.scored,
        taken=progress.taken,
        requests=round(spent.requests),
        budget=engine.over_budget,
        cost_usd=spent.cost_usd if all(model.price is not None for model in roles.values()) else None,
        selected=selected,
    )


def plan_scoring(given: Given, place: RunLocation, part: ShardPart | None = None) -> Progress:
    """What `score` has to do in a run or a shard: how many answers of each model have no scores yet."""
    prepared, reading = read_and_prepare(given, place)
    fold = reading.fold
    require_started(place, fold)
    fold.judge_again()
    if part is not None:
        _narrow(fold, part.selected)
    return RunCounts(
        fold, fold.story.cells, prepared.works, prepared.scorers, time.monotonic(), only_scores=True
    ).progress


def select_answers(prepared: Prepared, reading: Reading, selection: AnswerSelection) -> SelectedAnswers | None:
    """The chosen answers; None for all of them."""
    if not selection:
        return None
    grouped = [task for task, every in prepared.scorers.items() if any(each.group for each in every)]
    return AnswerSelector(reading.place, reading.fold, grouped).select(selection)


def _is_nothing_to_do(prepared: Prepared, fold: Fold, request: ScoreRequest, selected: SelectedAnswers | None) -> bool:
    """Whether the answers are scored, and the evaluation is recorded under this name and with these scales."""
    if selected is not None and not selected.ordinals.count:
        return True
    started = fold.story.evaluations.get(fold.evaluation)
    if prepared.declares_other_scales(started) or (request.name and (started is None or request.name != started.name)):
        return False
    chosen = [True] * len(fold.unscored)
    if selected is not None:
        chosen = [ordinal in selected.ordinals for ordinal in fold.unscored]
    if not all(chosen):  # the evaluation stays partial
        return started is not None and not any(chosen)
    return not chosen and fold.evaluation == fold.story.evaluation


def _narrow(fold: Fold, selected: SelectedAnswers) -> bool:
    """Leave only the chosen answers to be scored. False if no other answer lacks a score: then the evaluation will be
    whole.
    """
    others = [ordinal for ordinal in fold.unscored if ordinal not in selected.ordinals]
    for ordinal in others:
        del fold.unscored[ordinal]
    return bool(others)


def _called_roles(prepared: Prepared, fold: Fold) -> set[str]:
    """The roles whose models are going to get requests: not those of unchanged scorers, whose scores are copied."""
    sources = sources_of(fold.story, fold.evaluation, prepared.scorer_identities())
    judges = [
        each
        for task, every in prepared.scorers.items()
        for each in every
        if each.needs_ctx and (task not in sources or each.name not in sources[task].unchanged)
    ]
    if all(map(has_declared_roles, judges)):
        return {role for each in judges for role in each.roles()}
    return set(prepared.spec.roles)


def _given_models(prepared: Prepared, fold: Fold) -> dict[str, GivenModel]:
    """The models of roles that differ from those of the run's spec."""
    stored = stored_spec(fold).roles
    found = {}
    for role, model in prepared.spec.roles.items():
        before = stored.get(role)
        if before is None or (identity_of(before), before.params) != (identity_of(model), model.params):
            price = None if model.price is None else msgspec.to_builtins(model.price)
            found[role] = GivenModel(model.provider, model.model, model.params, model.options, price)
    return found


class AnomalyRescan(msgspec.Struct, frozen=True):
    """How many answers were scanned for anomalies, and for how many something new was recorded."""

    place: RunLocation
    answers: int
    changed: int


async def rescan_anomalies(given: Given, place: RunLocation) -> AnomalyRescan:
    """Scan every answer for anomalies with the kinds in force, and record new ones. Sends no request."""
    prepared, reading = await asyncio.to_thread(read_and_prepare, given, place)
    require_started(place, reading.fold)
    if not prepared.spec.anomalies:
        again = place.command("resume", "--set", "anomalies=true")
        raise UsageError(
            f"{place.run_id} does not scan for anomalies; enable it, which scans all answers, with: {again}"
        )
    async with _writing(prepared, reading) as session:
        lookout = AnomalyScan(place.folder, prepared.spec, prepared.works, reading.fold.story.cells)
        async with _leased(session, reading.fold):
            await lookout.look(place.journal, session.writer, everything=True)
    return AnomalyRescan(place, lookout.looked, lookout.changed)


@contextlib.asynccontextmanager
async def _writing(prepared: Prepared, reading: Reading, observe: Observe | None = None) -> AsyncIterator[RunSession]:
    """Claim the run and open its journal; close it at the end. An error of the body wins over one of closing."""
    with storage_errors(reading.place.folder):
        writer, logbook = await open_claimed(reading, await claim(reading, prepared.spec.mirror))
    try:
        yield RunSession(prepared, reading.place, reading.uid, observe, writer, logbook)
    except BaseException:
        await close_quietly(writer)
        raise
    finally:
        logbook.close()
    await writer.close()


@contextlib.asynccontextmanager
async def _leased(session: RunSession, fold: Fold) -> AsyncIterator[None]:
    """Announce in the lease that an ended run is being scored. The last lease of a run that crashed is kept: it is the
    only evidence of how the run ended.
    """
    if fold.story.end is None:
        yield
        return
    now, spec, writer = time.time(), session.prepared.spec, session.writer
    counts = (fold.planned, fold.finished.count, fold.failed.count)
    base = Lease(this_process(), writer.epoch, 1, now, now, spec.stall_seconds, *counts)
    base = msgspec.structs.replace(base, acknowledged=writer.acknowledged.n, lock=writer.lock_inode)
    lease = msgspec.structs.replace(base, scoring=True, end=fold.story.end.kind)

    def write(lease: Lease) -> None:
        if not writer.lost:
            write_lease(session.place.folder, lease)

    loop, thread = (
        asyncio.get_running_loop(),
        ThreadPoolExecutor(1, "holdfast-lease"),
    )  # own thread: scorers may occupy the default pool
    await loop.run_in_executor(thread, write, lease)
    try:
        yield
    finally:
        await loop.run_in_executor(thread, write, msgspec.structs.replace(lease, released=True))
        thread.shutdown(wait=False)


def recorded_answers(place: RunLocation, given: Given) -> Iterator[AnswerToScore]:
    """Yield every valid answer in plan order; each is read when it is needed."""
    place = readable(place)
    prepared, reading = read_and_prepare(given, place)
    secrets = secrets_of(given.spec)
    index, reader = Index(place.folder), Reader(place.journal)
    try:
        for cell in reading.fold.story.cells:
            work = prepared.works[cell.task]
            tickets = Tickets(place.folder, cell, prepared.spec, work)
            remaining = tickets.all()
            for row in index.answers("finished", cell.first, cell.count):
                ticket = next(each for each in remaining if each.o == row.o)  # both are in plan order: one pass
                finished = recorded_answer(reader, row)
                if finished is not None:
                    yield AnswerToScore(
                        ticket, finished.answer, row.n, reading.fold.evaluation, secrets, work.task.counts
                    )
    finally:
        reader.close()
        index.close()


async def try_scorers(place: RunLocation, given: Given, scorers: Sequence[Scorer]) -> list[Trial]:
    """Score the answers of a run without recording anything. Blocks on file reads, so it needs its own process."""
    for scorer in scorers:
        if scorer.needs_ctx:
            raise UsageError(f"{scorer.name} calls a judge, whose answers must be recorded: score without --watch")
    scores_of: dict[str, dict[str, ScoreGiven]] = {}
    beginnings: dict[str, str] = {}
    for answers in _groups(recorded_answers(place, with_scorers(given, scorers)), scorers):
        for scorer in scorers:
            for together in batches_for(answers, scorer):
                for judgement, scores in zip(together, await apply_scorer(together, scorer), strict=True):
                    beginnings[judgement.ticket.key] = judgement.answer.text[:_EXCERPT]
                    scores_of.setdefault(judgement.ticket.key, {}).update({each.scorer: each for each in scores})
                await asyncio.sleep(0)  # let a cancellation through
    return [Trial(key, beginnings[key], scores) for key, scores in scores_of.items()]


def _groups(answers: Iterator[AnswerToScore], scorers: Sequence[Scorer]) -> Iterable[Sequence[AnswerToScore]]:
    """Each answer alone; if a scorer needs groups, all repeats of a sample together."""
    if not any(scorer.group for scorer in scorers):
        return ([each] for each in answers)
    groups: dict[str, list[AnswerToScore]] = {}
    for each in answers:
        groups.setdefault(each.ticket.key.rpartition("/")[0], []).append(each)
    return groups.values()


_GIT_SECONDS = 5


def find_author() -> str:
    """The user's name from $USER or git; empty if neither is set."""
    if user := os.environ.get("USER", "").strip():
        return user
    try:
        git = subprocess.run(
            ["git", "config", "user.name"], capture_output=True, text=True, check=False, timeout=_GIT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return git.stdout.strip()


_NO_SCORE = frozenset({"null", "none"})
_TRUE_FALSE = {"true": True, "false": False}


class Edit(msgspec.Struct, frozen=True):
    """A score set by hand. `value`: as the user typed it."""

    key: str
    scorer: str
    value: str
    reason: str
    author: str
    evaluation: str = ""
    """The name or id of the evaluation; empty means the newest."""


def edited(run: Run, edit: Edit) -> ScoreGiven:
    """Check the edit and make its record."""
    for what, text in (("reason", edit.reason), ("author", edit.author)):
        if not text.strip():
            raise UsageError(f"a score that is set by hand needs its {what}: it stays with the score for good")
    planned = run.planned(edit.key)
    found = run.scored(edit.key, edit.evaluation)
    if found is None:
        raise UsageError(f"{edit.key} has no answer in {run.run_id}: there is nothing to score")
    if edit.scorer not in found.values:
        there = ", ".join(sorted(found.values)) or "none"
        raise UsageError(
            f"{edit.key} has no score of {edit.scorer!r} in the evaluation {found.evaluation}; it has: {there}"
        )
    value = _value(edit, found.examples[edit.scorer])
    given = ScoreGiven(planned.o, found.of, found.evaluation, edit.scorer, value, edit.reason)
    return msgspec.structs.replace(given, author=edit.author, at=datetime.now(UTC).isoformat(timespec="milliseconds"))


def _value(edit: Edit, example: Any) -> bool | int | float | str | None:
    """Convert the typed value to the type of the scorer's values. `example`: one of them; None if there is none."""
    text = edit.value.strip()
    if text.lower() in _NO_SCORE:
        return None
    if isinstance(example, str):
        return text
    found = _TRUE_FALSE[text.lower()] if text.lower() in _TRUE_FALSE else _number(text)
    if isinstance(found, float) and not math.isfinite(found):
        raise UsageError(f"{edit.scorer}={edit.value}: a score must be finite; write null for no score")
    if example is None and text:
        return text if found is None else found
    if isinstance(example, bool) and found in (0, 1):
        return bool(found)
    if found is None or isinstance(example, bool) or isinstance(found, bool):
        gives, expected = ("right or wrong", "true, false") if isinstance(example, bool) else ("numbers", "a number")
        problem = f"{edit.scorer} gives {gives}; write {expected}, or null for no score"
        raise UsageError(f"{edit.scorer}={edit.value}: {problem}")
    return found


def _number(text: str) -> int | float | None:
    try:
        return int(text) if text.lstrip("+-").isdigit() else float(text)
    except ValueError:
        return None
