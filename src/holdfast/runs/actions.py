"""What a program can do with a run besides reading it: continue, change, score, plot, export and verify it.

Each method has an async twin with the suffix `_async`, which does the work. The synchronous methods also work inside a
running event loop, such as a notebook's. The commands of the same names use the same functions. A crash leaves what it
leaves of the command: call the method again.
"""

import asyncio
import contextlib
import logging
import os
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypedDict, TypeVar, Unpack, cast

import msgspec

from holdfast.errors import ScorerError, SpecError, UsageError
from holdfast.runs.opened import OpenedRun
from holdfast.runs.store.lookup import RunLocation
from holdfast.spec import Selection, nearest

if TYPE_CHECKING:
    from holdfast.report import ExportLine, KeyFilter, Plot, RunReport
    from holdfast.runs.execution.answer_selection import AnswerSelection
    from holdfast.runs.execution.drift import Retry
    from holdfast.runs.execution.preparation import Given
    from holdfast.runs.execution.session import RunOutcome
    from holdfast.runs.export import Export
    from holdfast.runs.run import Run
    from holdfast.runs.verification import RunVerification
    from holdfast.score import Entry

Changes = Mapping[str, Any]
"""Fields of the spec and their new values: `{"tasks.sums.repeats": 4}`, as in `--set tasks.sums.repeats=4`."""
_NOTHING: Changes = {}


class ChosenKeys(TypedDict, total=False):
    """Which keys to export. Every condition that is given must hold."""

    failed: bool
    wrong: bool
    kinds: Sequence[str]
    grep: str
    tasks: Sequence[str]
    models: Sequence[str]
    anomalies: Sequence[str]


_LISTS = ("kinds", "tasks", "models", "anomalies")
"""Conditions that are lists; a single name is a list of one."""


class ChosenAnswers(TypedDict, total=False):
    """Which answers to score, and the models of the roles that judge them."""

    limit: int | None
    samples: Sequence[str]
    wrong: bool
    roles: Mapping[str, Any]


class PlotChoice(msgspec.Struct, frozen=True):
    """Which plot to draw. Empty `scorer`: the only one."""

    kind: str
    scorer: str
    evaluation: str
    image: str


class RunActions(OpenedRun):
    """The methods of a run that do more than read."""

    given: "Given | None" = None
    """What `holdfast.run` was called with, if the run was started or resumed in this process."""

    async def resume_async(
        self,
        spec: str | None = None,
        *,
        changes: Changes = _NOTHING,
        keep_failed: bool = False,
        trust: bool = False,
        quiet: bool = False,
    ) -> Self:
        """`resume` without blocking the event loop."""
        from holdfast.runs.execution.drift import Retry

        given = await self._given_with(spec, changes, trust=trust)
        return await self._execute(given, Retry(keep=keep_failed), quiet)

    def resume(
        self,
        spec: str | None = None,
        *,
        changes: Changes = _NOTHING,
        keep_failed: bool = False,
        trust: bool = False,
        quiet: bool = False,
    ) -> Self:
        """Continue the run and retry its failed samples, unless `keep_failed`. Returns the run.

        `spec` is the path of a spec; by default the run's own is used, with the functions that `holdfast.run` got in
        this process. `changes` sets single fields: `{"limits.run.cost_usd": 5}`. `trust` lets code that the run of
        another person names be executed.
        """
        work = self.resume_async(spec, changes=changes, keep_failed=keep_failed, trust=trust, quiet=quiet)
        return _block(work)

    async def retry_async(
        self, *keys: str, kinds: Sequence[str] = (), trust: bool = False, quiet: bool = False
    ) -> Self:
        """`retry` without blocking the event loop."""
        from holdfast.runs.execution.drift import Retry
        from holdfast.runs.overrides import left_without_failures

        given = await self._given_with(None, _NOTHING, trust=trust)
        chosen = Retry(kinds=tuple(kinds), keys=keys)
        if chosen == Retry() and await asyncio.to_thread(left_without_failures, self.place.whole) is not None:
            return self
        return await self._execute(given, chosen, quiet)

    def retry(self, *keys: str, kinds: Sequence[str] = (), trust: bool = False, quiet: bool = False) -> Self:
        """Give failed samples new attempts: all, by key, or by kind of failure. Without failed samples nothing happens.
        Returns the run.
        """
        return _block(self.retry_async(*keys, kinds=kinds, trust=trust, quiet=quiet))

    async def extend_async(
        self,
        spec: str | None = None,
        *,
        limit: int | None = None,
        changes: Changes = _NOTHING,
        trust: bool = False,
        quiet: bool = False,
    ) -> Self:
        """`extend` without blocking the event loop."""
        from holdfast.runs.execution.progress import observer
        from holdfast.runs.execution.workers import extend

        given = await self._given_with(spec, changes, Selection(limit), trust=trust)
        ended = await extend(given, self.place.whole, observer(quiet))
        self._changed(given)
        return await self._warn_unless_complete(ended, quiet)

    def extend(
        self,
        spec: str | None = None,
        *,
        limit: int | None = None,
        changes: Changes = _NOTHING,
        trust: bool = False,
        quiet: bool = False,
    ) -> Self:
        """Add samples (`limit`), repeats, models or tasks to the run and answer them. Returns the run. The arguments
        are those of `resume`.
        """
        return _block(self.extend_async(spec, limit=limit, changes=changes, trust=trust, quiet=quiet))

    async def fork_async(
        self,
        id: str | None = None,
        *,
        spec: str | None = None,
        changes: Changes = _NOTHING,
        trust: bool = False,
        quiet: bool = False,
    ) -> Self:
        """`fork` without blocking the event loop."""
        from holdfast.runs.execution.drift import Retry
        from holdfast.runs.execution.execute import new_run_location
        from holdfast.runs.fork import Fork, is_made_fork, make_fork

        given = await self._given_with(spec, changes, trust=trust)
        place = new_run_location(given, self.place.store, id)
        warn = logging.getLogger("holdfast").warning
        if id is None or not await asyncio.to_thread(is_made_fork, self.place.whole, place, given, warn):
            fork = await asyncio.to_thread(Fork, self.place, place, given)
            await make_fork(fork, lambda _: warn(fork.doubt) if fork.doubt else None)
        forked = type(self)(place)
        return await forked._execute(given, Retry(), quiet)  # noqa: SLF001 - of the same class

    def fork(
        self,
        id: str | None = None,
        *,
        spec: str | None = None,
        changes: Changes = _NOTHING,
        trust: bool = False,
        quiet: bool = False,
    ) -> Self:
        """Start a new run that reuses every unchanged recorded step, and return it. With the `id` of a fork that
        exists, resume it. The other arguments are those of `resume`.
        """
        return _block(self.fork_async(id, spec=spec, changes=changes, trust=trust, quiet=quiet))

    async def score_async(
        self,
        scorers: "Sequence[Entry] | Entry" = (),
        *,
        name: str = "",
        trust: bool = False,
        quiet: bool = False,
        **chosen: Unpack[ChosenAnswers],
    ) -> "RunReport":
        """`score` without blocking the event loop."""
        from holdfast.runs.execution.progress import observer
        from holdfast.runs.scoring import ScoreRequest, given_to_score
        from holdfast.runs.shard_scorer import score

        if callable(scorers) or isinstance(scorers, str | Mapping) or not isinstance(scorers, Sequence):
            scorers = [scorers]
        roles = chosen.pop("roles", {})
        if not isinstance(roles, Mapping):
            raise UsageError("roles is a mapping: roles={'judge': 'openai/gpt-x'}")
        warn = logging.getLogger("holdfast").warning
        with naming_parameters():
            request = ScoreRequest(scorers, name, _answer_selection(chosen), roles)
            given = await self._given_with(None, _NOTHING, trust=trust)
            given = await asyncio.to_thread(given_to_score, given, self.place.whole, request)
            done = await score(given, self.place.whole, request, observer(quiet))
        self.close()
        if done.selected is not None and not done.selected.ordinals.count:
            warn("%s: no answer is wrong by %s, so there is nothing to score", self.run_id, done.selected.judge)
            return await asyncio.to_thread(_report, self.place, "")
        if done.left:
            why = f"stopped at a budget: {done.budget}" if done.budget else "call it again to continue"
            warn("%s: %d answers are not scored; %s", self.run_id, done.left, why)
        return await asyncio.to_thread(_report, self.place, done.evaluation)

    def score(
        self,
        scorers: "Sequence[Entry] | Entry" = (),
        *,
        name: str = "",
        trust: bool = False,
        quiet: bool = False,
        **chosen: Unpack[ChosenAnswers],
    ) -> "RunReport":
        """Score the saved answers again, as a new evaluation with this `name`, and return its report. No evaluated
        model is called; scorers that have not changed are not called either.

        `scorers`: names or mappings as in a spec, functions, or files (`my_scorers.py`); by default the run's own.
        `roles={"judge": "openai/gpt-x"}` gives judges their models. To try a judge on a part of the answers: `limit=20`
        (the first samples of each task), `samples=["s1"]`, `wrong=True` (answers below the best score of the first
        scorer so far). The report of a part has `partial`. Scoring all later pays for none of these again. Shows
        progress as `holdfast.run` does, unless `quiet`.
        """
        return _block(self.score_async(scorers, name=name, trust=trust, quiet=quiet, **chosen))

    async def cancel_async(self) -> None:
        """`cancel` without blocking the event loop."""
        from holdfast.runs.requests import cancel

        self._require_local()
        await asyncio.to_thread(cancel, self.place.whole)

    def cancel(self) -> None:
        """Stop the run in the process that works on it; its answers are kept. UsageError if no process does."""
        _block(self.cancel_async())

    async def tune_async(self, changes: Changes) -> None:
        """`tune` without blocking the event loop."""
        from holdfast.runs.overrides import assignments
        from holdfast.runs.requests import tune

        self._require_local()
        await asyncio.to_thread(tune, self.place.whole, assignments(changes))

    def tune(self, changes: Changes) -> None:
        """Change limits of the live run, such as `{"concurrency.samples": 8}`."""
        _block(self.tune_async(changes))

    async def tag_async(self, *tags: str) -> None:
        """`tag` without blocking the event loop."""
        from holdfast.runs.requests import change_tags

        self._require_local()
        await asyncio.to_thread(change_tags, self.place.whole, tags)
        self.close()

    def tag(self, *tags: str) -> None:
        """Add tags, or remove those with a leading `-`. `summary().tags` has them."""
        _block(self.tag_async(*tags))

    async def note_async(self, text: str) -> None:
        """`note` without blocking the event loop."""
        from holdfast.runs.requests import add_note

        self._require_local()
        await asyncio.to_thread(add_note, self.place.whole, text)
        self.close()

    def note(self, text: str) -> None:
        """Add a note. `summary().notes` has all of them, with their times."""
        _block(self.note_async(text))

    async def export_async(
        self,
        output: str | os.PathLike[str],
        format: str = "",
        *,
        events: bool = False,
        evaluation: str = "",
        columns: Sequence[str] = (),
        **chosen: Unpack[ChosenKeys],
    ) -> None:
        """`export` without blocking the event loop."""
        from holdfast.report import parse_columns
        from holdfast.runs.export import Export

        keys = _key_filter("export", chosen)
        export = Export(os.fspath(output), format, events, evaluation, keys, parse_columns(columns))
        await asyncio.to_thread(_export, self.place, export)

    def export(
        self,
        output: str | os.PathLike[str],
        format: str = "",
        *,
        events: bool = False,
        evaluation: str = "",
        columns: Sequence[str] = (),
        **chosen: Unpack[ChosenKeys],
    ) -> None:
        """Write answers and scores to a file, one line for each key. `format`: jsonl, csv or parquet; by default that
        of the file's suffix. `events` adds the steps of each key, `columns` columns of the data rows (`["*"]`: all).
        `failed=True`, `wrong=True`, `kinds=["timeout"]`, `tasks=[…]`, `models=[…]`, `anomalies=[…]` and `grep="…"`
        choose keys, as the options of the command do.
        """
        _block(self.export_async(output, format, events=events, evaluation=evaluation, columns=columns, **chosen))

    async def plot_async(
        self, kind: str = "scores", *, scorer: str = "", evaluation: str = "", image: str = "svg"
    ) -> "Plot":
        """`plot` without blocking the event loop."""
        return await asyncio.to_thread(_plot, self.place, PlotChoice(kind, scorer, evaluation, image))

    def plot(self, kind: str = "scores", *, scorer: str = "", evaluation: str = "", image: str = "svg") -> "Plot":
        """A plot of one scorer: its `scores` with intervals, `cost` against score, paired `differences`, `pass-at-k`;
        or the `seconds` of an answer. A notebook shows it; `save(path)` writes it. `image`: svg or png.
        """
        return _plot(self.place, PlotChoice(kind, scorer, evaluation, image))

    async def verify_async(self, *, scores: bool = False) -> "RunVerification":
        """`verify` without blocking the event loop."""
        from holdfast.runs.verification import verify_files, verify_mirrored

        self.close()
        check = verify_mirrored if self.place.url else verify_files
        return await asyncio.to_thread(check, self.place, scores=scores)

    def verify(self, *, scores: bool = False) -> "RunVerification":
        """Check every byte of the run; `ok` is False if anything is damaged. `scores` also recomputes the reports and
        the scores of built-in scorers.
        """
        return _block(self.verify_async(scores=scores))

    def chosen_lines(self, lines: "Iterator[ExportLine]", chosen: ChosenKeys) -> "Iterator[ExportLine]":
        """The lines of this run that pass all conditions."""
        from holdfast.runs.export import select_lines

        keys = _key_filter("samples", chosen)
        with naming_parameters():
            return select_lines(cast("Run", self), lines, keys) if keys else lines

    def _require_local(self) -> None:
        if self.place.url:
            restore = f"holdfast.recover({self.place.url!r})"
            raise UsageError(
                f"{self.run_id} is open as a copy from a mirror, which cannot change; restore it: {restore}"
            )

    async def _given_with(
        self, spec: str | None, changes: Changes, part: Selection | None = None, *, trust: bool = False
    ) -> "Given":
        """The spec and the Python objects to continue this run with."""
        from holdfast.runs.overrides import Overrides, assignments, resolve_given
        from holdfast.spec import change_spec, select, spec_mapping

        self._require_local()
        sets, part, own = assignments(changes), part or Selection(), self.given
        # Functions are not stored in the run; the ones of this process continue it.
        if spec is None and own is not None and (own.rows or own.solvers or any(own.scorers.values())):
            changed = change_spec(spec_mapping(own.spec), sets) if sets else own.spec
            return msgspec.structs.replace(own, spec=select(changed, part))
        return await asyncio.to_thread(resolve_given, self.place.whole, spec, Overrides(sets, part, trust))

    async def _execute(self, given: "Given", retry: "Retry", quiet: bool) -> Self:
        from holdfast.runs.execution.progress import observer
        from holdfast.runs.execution.workers import execute

        ended = await execute(given, self.place.whole, observer(quiet), retry)
        self._changed(given)
        return await self._warn_unless_complete(ended, quiet)

    async def _warn_unless_complete(self, ended: "RunOutcome", quiet: bool = False) -> Self:
        """Warn the user of a program, unless it is to be quiet, if the run ended without being completed. Returns the
        run.
        """
        from holdfast.runs.execution.progress import log_event
        from holdfast.runs.store.lookup import needed_changes

        if quiet or not ended.unfinished:
            return self
        status, reason = await asyncio.to_thread(self.status)
        changes = needed_changes(reason, ended.spec.limits.run)
        planned = ended.finished + ended.failed + ended.unfinished
        why = f": {reason}" if reason else ""
        again = f"run.resume({f'changes={changes}' if changes else ''})"
        kept = f"{ended.finished} of {planned} answers are saved; continue with {again}"
        log_event(logging.WARNING, f"{self.run_id}: {status}{why}; {kept}")
        return self

    def _changed(self, given: "Given") -> None:
        """Forget what was read before, and remember the functions of this process for the next call."""
        self.close()
        if not given.from_run and not given.where:
            self.given = given


@contextlib.contextmanager
def naming_parameters() -> Iterator[None]:
    """Name parameters instead of the options of a command in errors: `at_least`, not `--at-least`."""
    from holdfast.report import name_parameters  # late: the reports are slow to import

    try:
        yield
    except ScorerError as error:
        raise ScorerError(name_parameters(error.place), name_parameters(error.problem)) from None
    except (UsageError, SpecError) as error:
        text = name_parameters(str(error))
        raise (UsageError if isinstance(error, UsageError) else SpecError)(text) from None


T = TypeVar("T")


def _block(work: Coroutine[Any, Any, T]) -> T:
    from holdfast.runs.execution.execute import run_blocking

    async def await_work() -> T:
        return await work

    return run_blocking(await_work)


def _key_filter(function: str, chosen: ChosenKeys) -> "KeyFilter":
    from holdfast.report import KeyFilter

    unknown = chosen.keys() - set(KeyFilter.__struct_fields__)
    if unknown:
        raise TypeError(f"{function}() has no argument {min(unknown)!r}")
    given = {name: (value,) if name in _LISTS and isinstance(value, str) else value for name, value in chosen.items()}
    try:
        return msgspec.convert(given, KeyFilter)
    except msgspec.ValidationError as error:
        raise UsageError(f"{function}(): {error}") from error


def _report(place: RunLocation, evaluation: str) -> "RunReport":
    from holdfast.runs.run import Run

    with Run(place, quiet=True) as run:
        return run.report(evaluation)


def _answer_selection(chosen: ChosenAnswers) -> "AnswerSelection":
    from holdfast.runs.execution.answer_selection import AnswerSelection

    unknown = chosen.keys() - set(AnswerSelection.__struct_fields__)
    if unknown:
        raise TypeError(f"score() has no argument {min(unknown)!r}")
    samples = chosen.get("samples", ())
    if isinstance(samples, str):
        raise UsageError("samples is a list of ids: samples=['s1']")
    limit = chosen.get("limit")
    if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool)):
        raise UsageError(f"limit={limit!r}: a whole number of samples")
    found = AnswerSelection(limit, tuple(samples), chosen.get("wrong", False))
    found.check()
    return found


def _export(place: RunLocation, export: "Export") -> None:
    from holdfast.runs.export import write_export
    from holdfast.runs.run import Run

    with Run(place) as run, naming_parameters():
        write_export(run, export)


def _plot(place: RunLocation, wanted: PlotChoice) -> "Plot":
    from holdfast.report import IMAGES, PLOT_KINDS, collect_plot_data, planned_plots
    from holdfast.runs.run import Run

    if wanted.kind not in PLOT_KINDS:
        raise UsageError(f"there is no plot {wanted.kind!r}{nearest(wanted.kind, set(PLOT_KINDS))}")
    if wanted.image not in IMAGES:
        raise UsageError(f"image={wanted.image!r}: plots are {' or '.join(IMAGES)}")
    with Run(place) as run:
        data = collect_plot_data([(run.report(wanted.evaluation), run.lines(wanted.evaluation))])
    found = {each.scorer: each for each in planned_plots(data) if each.kind == wanted.kind}
    if not found:
        raise UsageError(f"{place.run_id} has nothing to plot as {wanted.kind!r}")
    if wanted.scorer in found:
        return found[wanted.scorer].draw(wanted.image)
    if wanted.scorer:
        raise UsageError(f"scorer={wanted.scorer!r}: there is no such scorer{nearest(wanted.scorer, set(found))}")
    if len(found) > 1:
        raise UsageError(f"name the scorer to plot, for example scorer={next(iter(found))!r}: {', '.join(found)}")
    return next(iter(found.values())).draw(wanted.image)
