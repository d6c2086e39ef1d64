"""`Run`: one run. Its summary, report, samples, scores, costs, and the history of single keys.

Its bases: `RunActions` continues and changes the run; `OpenedRun` owns the index and checks the run's files. Nothing
here writes to the run's folder.
"""

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import msgspec
import xxhash

from holdfast.errors import UsageError
from holdfast.journal import Reader
from holdfast.plan import rows_of
from holdfast.records import parse_key
from holdfast.report import (
    UNKNOWN,
    Anomalies,
    CellName,
    CellReport,
    CostLine,
    EventLine,
    ExportLine,
    KeyFilter,
    KeyRecords,
    KeyStory,
    LineageReport,
    PaidTwice,
    PartialEvaluation,
    PlannedKey,
    ProfileReport,
    Question,
    QuestionReader,
    RunReport,
    SampleGroups,
    ScoreLine,
    SideAnswers,
    StoredBenchmark,
    StoredSpec,
    Table,
    activity_of,
    attempts_of,
    choose,
    collect,
    column_kinds,
    cost_lines,
    cost_table,
    export_lines,
    find_planned,
    judges_of,
    judgings_of,
    lineage_report,
    nearest_key,
    paid_twice,
    parse_columns,
    profile_report,
    read_weights,
    report_cells,
    resolve_columns,
    restricted_tasks,
    sample_table,
    score_kinds,
    score_lines,
    score_table,
    scores_of,
    sides_in,
    sides_of,
    with_events,
    withhold,
    withhold_messages,
)
from holdfast.runs.actions import ChosenKeys, RunActions
from holdfast.runs.opened import WritableReport, partial_evaluation, report_of
from holdfast.runs.shards.sessions import ShardState, read_shards, with_sessions, with_workers
from holdfast.runs.store.lookup import default_store
from holdfast.runs.store.provenance import SpecVersion, origin_of, spec_text, spec_versions
from holdfast.runs.summary import (
    EvaluationLine,
    Observed,
    RunSummary,
    ScoredAnswer,
    WaitingJob,
    evaluation_names,
    find_evaluations,
    make_summary,
    waiting_jobs,
)
from holdfast.score import scales_of
from holdfast.spec import Price, Reduction, stored_reductions
from holdfast.state import (
    Standing,
    example_value,
    recorded_answer,
    recorded_edits,
    recorded_scores,
    role_prices,
    standing_of,
)

if TYPE_CHECKING:
    from holdfast.report import RunPage


class Run(RunActions):
    """One run in a store: its reports, samples, scores, costs and stories, and what can be done with it. Close it, or
    use it in a `with` statement, to release its index.
    """

    is_published = False
    """Whether what is read will be published: the texts of tasks with `share: no-text` are left out."""
    _reader: Reader | None = None
    """For the texts of answers that a comparison shows."""

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
            self._reader = None
        super().close()

    def __repr__(self) -> str:
        status, reason = self.status()
        counts = f"{self._index.finished} of {self._index.story.planned} finished, {self._index.failed} failed"
        return f"<Run {self.place.experiment}/{self.run_id}: {status}{f' ({reason})' if reason else ''}, {counts}>"

    def _repr_html_(self) -> str:
        return self.report()._repr_html_()

    def cells(self, evaluation: str = "") -> Iterator[CellReport]:
        return withhold_messages(report_cells(self._index, self._evaluation(evaluation)), self.withheld_tasks)

    def _evaluation(self, name: str) -> str:
        """Resolve a name, a label, an id or the prefix of an id to an evaluation id; empty means the newest."""
        found = find_evaluations(self._index.story, name) if name else []
        if name and len(found) != 1:
            known = ", ".join(f"{each} ({label})" for each, label in self.evaluation_names().items())
            problem = "has no evaluation" if not found else "has several evaluations that begin with"
            raise UsageError(f"{self.place.run_id} {problem} {name!r}; there are: {known or 'none'}")
        return found[0] if found else ""

    def evaluation_id(self, name: str = "") -> str:
        """The id of an evaluation by its name, its id or a prefix of it; by default of the current one, empty if there
        is none.
        """
        return self._evaluation(name) or self._index.story.evaluation

    def evaluation_names(self) -> dict[str, str]:
        """What each evaluation is called, by id: its own name, or its scorers."""
        return evaluation_names(self._index.story)

    def report(self, evaluation: str = "") -> WritableReport:
        """`evaluation`: a name, label or id; the newest by default. `save` writes it to a file."""
        status = self.status()  # first: it may open the index again
        shown, withheld = self._evaluation(evaluation), self.withheld_tasks
        return report_of(self.place, self._index, shown, status, self.damage, withheld)

    def profile(self) -> ProfileReport:
        """Where the time went, and how many requests were in flight over time."""
        status, _ = self.status()
        shards = read_shards(self.place)
        profile, lease = with_sessions(self._index.profile, shards), standing_of(self.place.folder).lease
        is_current = profile.alive and not shards and lease is not None and not lease.scoring and not lease.end
        names = (self.place.run_id, self.place.experiment, status)
        return profile_report(profile, names, lease.commits if lease is not None and is_current else None)

    def lineage(self) -> LineageReport:
        """Every process that worked on the run: how it began and ended, what it changed, what it did not pay again."""
        status = self.status()
        live = status[0] in ("running", "stalled")
        report = lineage_report(self._index, (self.run_id, self.place.experiment), status, live=live)
        shards = read_shards(self.place)
        return with_workers(report, shards) if shards else report

    def spec_versions(self) -> list[SpecVersion]:
        """Every spec that the run has had, the oldest first."""
        return spec_versions(self._index.story)

    def spec_text(self) -> str:
        """The spec in force as YAML, with the history of the run as comments: the content of spec.yaml. Empty if the
        run has not begun.
        """
        return spec_text(self.place, self._index.story) if self.has_begun else ""

    def sheet(self, evaluation: str = "", columns: Sequence[str] = ()) -> "RunPage":
        """The report with the additions of the HTML page: example answers and what they were asked, with `columns` of
        their rows, the cost of each model, and the provenance of the run.
        """
        from holdfast.report import RunPage, shown_keys, survey_answers, withhold_examples  # late: rarely needed

        report = self.report(evaluation)
        with contextlib.closing(Reader(self.place.journal)) as reader:
            answers = survey_answers(self._index, report, reader)
        answers = withhold_examples(answers, self.withheld_tasks) if self.withheld_tasks else answers
        keys = {key: parse_key(key) for key in shown_keys(report, answers)}
        found = {
            task: self.questions(task, {each.sample_id for each in keys.values() if each.task == task}, columns)
            for task in {each.task for each in keys.values()}
        }
        asked = {key: found[each.task].get(each.sample_id, UNKNOWN) for key, each in keys.items()}
        origin = origin_of(self.place, self._index.story, report.evaluation)
        return RunPage(report, tuple(self.cost_lines()), origin, answers, asked, self.holds_data())

    def score_kinds(self, evaluation: str = "") -> dict[str, str]:
        """Whether the values of each scorer are booleans, numbers or labels."""
        return score_kinds(self._index, self._evaluation(evaluation))

    def summary(self, evaluation: str = "") -> RunSummary:
        """`evaluation`: the name or id of the evaluation whose scores are shown; the newest by default."""
        status = self.status()  # first: it may bring the index up to date
        return self._summary(list(self.cells(evaluation)), status, self.damage)

    def _paid_twice(self, shards: Sequence[ShardState]) -> PaidTwice:
        fenced = [each for shard in shards for each in shard.fenced]
        rows = {key: self._index.answer(key) for key in {each.key for each in fenced}}
        again = {key for key, row in rows.items() if row is not None and row.status == "finished"}
        others = [(each.key, each.role, each.usage) for each in fenced if each.key in again]
        return paid_twice(self._index.story, others)

    def summary_of(self, report: RunReport) -> RunSummary:
        """The summary that belongs to a report of this run: computing cells again would cost as much as the report."""
        return self._summary(report.cells, (report.status, report.reason), report.damage)

    def _summary(self, cells: Sequence[CellReport], status: tuple[str, str], damage: Sequence[str]) -> RunSummary:
        found = make_summary(self.place, self._index, cells, status, damage)
        shards = read_shards(self.place)
        statuses = [each.status for each in shards]
        return msgspec.structs.replace(found, shards=statuses, paid_twice=self._paid_twice(shards))

    def cost_lines(self) -> list[CostLine]:
        """Usage and cost by cell, model and role."""
        return cost_lines(self._index.story, {(cell.task, cell.model): cell.finished for cell in self.cells()})

    def observed(self) -> dict[tuple[str, str], Observed]:
        """The usage of finished answers by task and model, for estimates of the next run."""
        found: dict[tuple[str, str], Observed] = {}
        # Models that were given for an evaluation are not part of the next run.
        roles = {"", *self._index.story.spec.get("roles", {})}
        for line in self.cost_lines():
            if line.finished and line.role in roles:
                before = found.get((line.task, line.model), Observed(self.run_id, line.finished))
                used = {**before.used, line.role: line.usage + line.taken}
                found[line.task, line.model] = msgspec.structs.replace(before, used=used)
        return found

    def jobs(self) -> list[WaitingJob]:
        """Jobs of batch APIs whose results have not been received."""
        return waiting_jobs(self._index.story)

    def row_digests(self) -> dict[tuple[str, str], str]:
        """A digest of each sample's row, by task and id, to compare the data of two runs. Empty if the run does not
        store its data.
        """
        found: dict[tuple[str, str], str] = {}
        for cell in {(cell.rows_block, cell.task): cell for cell in self._index.story.cells}.values():
            for line in rows_of(self.place.folder, cell) if self.holds_data() else ():
                row = msgspec.json.encode(msgspec.json.decode(line.row), order="sorted")  # in any order of columns
                found[cell.task, line.id] = xxhash.xxh3_64_hexdigest(row)
        return found

    def holds_data(self) -> bool:
        return bool(self._index.story.spec.get("record_data", True))

    def unknown_groups(self) -> dict[str, str]:
        """Tasks whose spec names a group column but whose groups are unknown, each with the reason."""
        story = self._index.story
        return SampleGroups(self.place.folder, story.spec, story.cells).unknown

    def scorer_identities(self, evaluation: str = "") -> list[dict[str, Any]]:
        """The scorers of an evaluation (by default the newest): names, arguments, digests of code, and the models of
        judges.
        """
        story = self._index.story
        found = self._evaluation(evaluation) or story.evaluation
        roles = story.spec.get("roles", {})
        every = story.evaluations[found].scorers if found else []
        # The recorded judges count: `score --role` may have given others than the spec. 0.1.0 recorded none.
        return [{**each, "judges": judges_of(each, {**roles, **(each.get("judges") or {})})} for each in every]

    def reductions(self) -> dict[str, tuple[Reduction, ...]]:
        """How the scores of the repeats of a sample are combined, by task."""
        return stored_reductions(self._index.story.spec)

    def benchmarks(self) -> dict[str, StoredBenchmark]:
        """The benchmark that a task was made from, by task; without other tasks."""
        return StoredSpec.of(self._index.story.spec).benchmarks()

    def planned_count(self) -> int:
        return self._index.story.planned

    def lines(self, evaluation: str = "", columns: Sequence[str] = (), *, asked: bool = True) -> Iterator[ExportLine]:
        """Every planned key once, in plan order, with the scores of an evaluation (by default the newest). `columns`:
        which columns of its data row are in `row`; `["*"]` for all. `asked=False` reads no rows: faster, without
        `input`, `target` and `prompt`. Raises DamagedError if the plan is damaged.
        """
        if self.damage:
            self._damage.require_plan()
        chosen = parse_columns(columns)
        lines = export_lines(self.place.folder, self._index, self._evaluation(evaluation), chosen, asked=asked)
        withheld = self.withheld_tasks
        return (withhold(line) if line.task in withheld else line for line in lines) if withheld else lines

    @property
    def withheld_tasks(self) -> frozenset[str]:
        """The tasks whose texts are left out."""
        return restricted_tasks(self._index.story.spec) if self.is_published else frozenset()

    def row_columns(self, columns: Sequence[str]) -> tuple[str, ...]:
        """The names of columns of the data rows; `["*"]` means all. Raises UsageError for one that no row has."""
        story = self._index.story
        return resolve_columns(self.place.folder, story.spec, story.cells, parse_columns(columns))

    def column_kinds(self, columns: Sequence[str]) -> dict[str, str]:
        """Whether the values of each column are booleans, integers, numbers or anything else."""
        story = self._index.story
        return column_kinds(self.place.folder, story.spec, story.cells, columns)

    def questions(self, task: str, ids: Collection[str], columns: Sequence[str] = ()) -> dict[str, Question]:
        """What samples of a task were asked, by id, with `columns` of their rows; without those whose rows are not
        recorded or cannot be read.
        """
        story = self._index.story
        if task in self.withheld_tasks:
            return {}
        return QuestionReader(self.place.folder, story.spec, parse_columns(columns)).find(story.cells, task, ids)

    def questions_at(self, ordinals: Collection[int]) -> dict[int, Question]:
        """What a few keys were asked, by ordinal: fast also in a long plan. Otherwise as `questions`."""
        story = self._index.story
        return QuestionReader(self.place.folder, story.spec).at(story.cells, self._shown(ordinals))

    def _shown(self, ordinals: Collection[int]) -> Collection[int]:
        """Those keys whose texts are not withheld."""
        hidden = [cell for cell in self._index.story.cells if cell.task in self.withheld_tasks]
        return [o for o in ordinals if not any(cell.first <= o < cell.first + cell.count for cell in hidden)]

    def answer_texts(self, ordinals: Collection[int]) -> dict[int, str]:
        """The texts of a few answers, by ordinal; without keys that are not finished."""
        return {o: text for o in sorted(self._shown(ordinals)) if (text := self._text_at(o)) is not None}

    def _text_at(self, o: int) -> str | None:
        if self._reader is None:
            self._reader = Reader(self.place.journal)
        row = self._index.row(o)
        recorded = recorded_answer(self._reader, row) if row is not None else None
        return recorded.answer.text if recorded is not None else None

    def sides(
        self, name: str, evaluation: str = "", reductions: Mapping[str, Sequence[Reduction]] | None = None
    ) -> dict[CellName, SideAnswers]:
        """The sides of comparisons in this run, under a name, with the scores of an evaluation. Raises DamagedError if
        the plan is damaged.
        """
        if self.damage:
            self._damage.require_plan()
        scorers = self.scorer_identities(evaluation)
        known = {**self.reductions(), **(reductions or {})}
        found = self._evaluation(evaluation) or self._index.story.evaluation
        spec, is_partial = StoredSpec.of(self._index.story.spec), found in self._index.story.partial
        how = {}
        for task, several in known.items():
            scales = scales_of(scorers, task)
            is_wrong = spec.counts(task).failed == "wrong" and not is_partial
            how[task] = (several, scales.of, scales.names if is_wrong else None)
        if any(each.is_cons for several in known.values() for each in several):  # it compares the texts of all answers
            made = sides_of(name, self.lines(evaluation, asked=False), how)
        else:
            made = sides_in(name, self._index, found, how, lambda o: self._text_at(o) or "")
        self._weigh(made, scorers)
        return made

    def _weigh(self, sides: Mapping[CellName, SideAnswers], scorers: Sequence[Mapping[str, Any]]) -> None:
        """Set how much samples weigh, for scorers that give the share of several parts of a sample."""
        story = self._index.story
        for (task, model), side in sides.items():
            cells = [cell for cell in story.cells if (cell.task, cell.model) == (task, model)]
            for scorer, column in scales_of(scorers, task).weights.items():
                found = read_weights(self.place.folder, story.spec, cells, column)
                side.weigh(scorer, {parse_key(key).sample_id: weight for key, weight in found.by_key.items()})

    def events(self, lines: Iterable[ExportLine], *, of_finished: bool = True) -> Iterator[EventLine]:
        """The same lines with `events`, the records of each key's steps, and `messages`, the whole conversation.
        Streams: one key is in memory at a time.
        """
        return with_events(lines, self.place.folder, of_finished=of_finished)

    def samples(
        self, evaluation: str = "", columns: Sequence[str] = (), **chosen: Unpack[ChosenKeys]
    ) -> Table[ExportLine]:
        """Every planned key with its answer, usage, scores, input and target; convert it with `.to_pandas()` or
        `.to_polars()`. `columns`: more columns of the data rows, `["*"]` for all. `wrong=True`, `failed=True`,
        `tasks=[…]` and the others choose keys as those of `export`. Loads them into memory; `lines()` streams.
        """
        return sample_table(self.chosen_lines(self.lines(evaluation, columns), chosen), self.row_columns(columns))

    def failed(self) -> Table[ExportLine]:
        """The samples that failed, with their errors."""
        return sample_table(choose(self.lines(), KeyFilter(failed=True)))

    def scores(self, evaluation: str = "") -> Table[ScoreLine]:
        """Every score of an evaluation (by default the newest), with its reason, and what the sample was asked."""
        found = self._evaluation(evaluation)
        scored = {row.o for row in self._index.scores(found or self._index.story.evaluation)}
        return score_table(score_lines(self._index, found, self.questions_at(scored)))

    def costs(self) -> Table[CostLine]:
        """Usage and cost by cell, model and role, as a table."""
        return cost_table(self.cost_lines())

    def evaluations(self) -> list[EvaluationLine]:
        """All evaluations of the run, the oldest first."""
        story = self._index.story
        return [
            EvaluationLine(
                evaluation=each,
                name=started.name,
                scorers=list(dict.fromkeys(str(one.get("name", "")) for one in started.scorers)),
                begun=story.evaluated.get(each, ""),
                counts=self._index.counts_of(each),
                current=each == story.evaluation,
                partial=each in story.partial,
                finished=self._index.finished,
            )
            for each, started in story.evaluations.items()
        ]

    def partial(self, evaluation: str = "") -> PartialEvaluation | None:
        """How much an evaluation covers in which only chosen answers are scored; None if it is for all answers."""
        return partial_evaluation(self._index, self._evaluation(evaluation))

    def scored(self, key: str, evaluation: str = "") -> ScoredAnswer | None:
        """The scores of one answer in an evaluation (by default the newest); None if there is no answer."""
        found = self._evaluation(evaluation) or self._index.story.evaluation
        row = self._index.answer(key)
        if row is None or row.status != "finished":
            return None
        index = self._index
        # Read from the journal, not the index: a hand-set score may be recorded because of it.
        with contextlib.closing(Reader(self.place.journal)) as reader:
            if recorded_answer(reader, row) is None:
                return None
            answer = (row.o, row.n)
            given = recorded_scores(reader, index, answer, found) + recorded_edits(reader, index, answer, found)
            values = {each.scorer: each.value for each in given}
            examples = {scorer: example_value(reader, index, found, scorer) for scorer in values}
        return ScoredAnswer(found, row.n, values, examples)

    def show(self, key: str, evaluation: str = "") -> KeyStory:
        """The history of one key: requests, responses, failures, scores. `evaluation`: the name or id of the evaluation
        whose scores are shown; the newest by default.
        """
        standing = standing_of(self.place.folder)
        self.status()
        planned = self.planned(key)
        with contextlib.closing(Reader(self.place.journal)) as reader:
            positions = self._index.positions(planned.o)
            entries = (reader.record_at(each.segment, each.offset) for each in positions)
            found = collect(entries, key, KeyRecords(lives=self._index.lives))
        return self.story_of(planned, found, evaluation, standing)

    def story_of(
        self,
        planned: PlannedKey,
        found: KeyRecords,
        evaluation: str,
        standing: Standing,
        latest: KeyRecords | None = None,
    ) -> KeyStory:
        """The history of a key from its records. `latest`: with the texts of its last steps, if `found` lacks them."""
        key, finished = planned.key, found.finished
        prices = StoredSpec.of(self._index.story.spec).prices(parse_key(key).model)
        attempts = attempts_of(found, prices)
        row = self._index.row(planned.o)
        status = row.status if row is not None else "unfinished"
        doing, text, lease = None, "", standing.lease
        if status == "unfinished" and standing.held:
            if lease is not None and not lease.scoring:
                stalled = lease.stall.samples if lease.stall else []
                listed = next((each for each in (*stalled, *lease.oldest) if each.key == key), None)
                recent = attempts if latest is None else attempts_of(latest, prices)
                doing = activity_of(listed, recent, standing.now, found.process)
            text = str(doing or "the run is in progress; this sample has not begun, or is not among its oldest")
        chosen = self._evaluation(evaluation) or self._index.story.evaluation
        asked = QuestionReader(self.place.folder, self._index.story.spec).of(parse_key(key).task, planned.data)
        return KeyStory(
            run_id=self.run_id,
            key=key,
            o=planned.o,
            status=status,
            doing=text,
            row=planned.row,
            messages=found.first_request,
            attempts=attempts,
            answer=finished[1].answer if finished else None,
            failure=attempts[-1].failure if attempts and not finished else None,
            scores=scores_of(found, chosen),
            in_progress=doing,
            resumes=tuple(life.at for life in found.lives[1:]),
            anomalies={} if row is None else Anomalies(self._index, chosen).of(row),
            judgings=judgings_of(found, prices, evaluation_names(self._index.story), self._given_prices()),
            input=asked.input,
            target=asked.target,
            prompt=asked.prompt,
            answered=finished[0] if finished else 0,
        )

    def _given_prices(self) -> dict[str, dict[str, Price | None]]:
        """By evaluation: the prices of models that were given for it, by role."""
        story, prices = self._index.story, role_prices(self._index.story)
        return {
            name: {role: prices[started.bill_name(role)] for role in started.roles}
            for name, started in story.evaluations.items()
        }

    def scorers(self, evaluation: str = "") -> list[str]:
        """Those with recorded scores."""
        return sorted({each.scorer for cell in self.cells(evaluation) for each in cell.scorers if not each.of})

    def planned(self, key: str) -> PlannedKey:
        """A key's position in the plan, and its row. Raises UsageError with the most similar key if the plan does not
        have it, and DamagedError if plan or data are damaged.
        """
        if self.damage:
            self._damage.require_originals()
        cells = self._index.story.cells
        found = find_planned(self.place.folder, cells, key)
        if found is None:
            near = nearest_key(self.place.folder, cells, key)
            hint = f"did you mean {near!r}?" if near else f"list keys with: holdfast export {self.place.run_id}"
            raise UsageError(f"{self.place.run_id} has no key {key!r}; {hint}")
        return found


def open_run(run_id: str | os.PathLike[str] = "latest", *, store: str | None = None) -> Run:
    """Open a run for reading, by its id, a unique prefix of it, `latest`, its folder, or its URL in a mirror. `store`
    is a folder or the URL of a mirror.
    """
    return Run.find(store or default_store(), os.fspath(run_id))
