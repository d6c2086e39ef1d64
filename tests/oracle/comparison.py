"""Every number of a report a second time: what the report says beside what follows from the journal.

Nothing is shared with what makes reports: records are read by `recount`, numbers are what `formulas` says of them.
"""

import math
import statistics
from collections import Counter
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from typing import Any

from holdfast.records.samples import Usage
from holdfast.report.cells import CellReport, RunReport, ScorerReport
from holdfast.report.costs import Cost, StoredSpec
from holdfast.report.profile import ModelProfile
from holdfast.report.reduction import Reduced
from holdfast.report.summaries.agreement import Agreement, panels
from holdfast.spec.reductions import MEAN, Reduction, stored_reductions
from holdfast.stats import Summary
from tests.oracle import formulas, scales
from tests.oracle.anomalies import anomalous_answers, not_looked_at
from tests.oracle.formulas import Defined, Given, Possible, is_number
from tests.oracle.recount import Recount, Said
from tests.oracle.speeds import COUNTS, quantiles

_CLOSE = 1e-9
_ROUNDED = 0.0006
"""Seconds, and what is said for each second, are rounded to three digits in a report."""


class Tally:
    """Numbers beside each other: how many, and which of them differ."""

    def __init__(self) -> None:
        self.numbers = 0
        self.wrong: list[str] = []

    def number(self, name: str, reported: float | None, found: float | None, slack: float = 0.0) -> None:
        self.numbers += 1
        if reported is None or found is None:
            same = reported is found
        else:
            same = math.isclose(reported, found, rel_tol=_CLOSE, abs_tol=max(slack, 1e-12))
        if not same:
            self.wrong.append(f"{name}: the report says {_told(reported)}, the journal {_told(found)}")

    def numbers_of(self, name: str, reported: Mapping[str, int], found: Mapping[str, int]) -> None:
        """Counts by name: what one of them does not have is 0 there."""
        for each in {**reported, **found}:
            self.number(f"{name}{each}", reported.get(each, 0), found.get(each, 0))

    def names(self, place: str, reported: Sequence[str], found: Sequence[str]) -> None:
        """What has numbers at all."""
        if set(reported) != set(found):
            told = (", ".join(names) or "nothing" for names in (reported, found))
            self.wrong.append("{}: the report has {}, the journal {}".format(place, *told))

    def summary(self, place: str, reported: Summary, found: Defined, counts: tuple[int, int | None]) -> None:
        """`found`: of one value a sample. `counts`: numbers of answers, and of groups if samples share them."""
        self.number(f"{place}n", reported.n, counts[0])
        self.number(f"{place}samples", reported.samples, None if found.n == counts[0] else found.n)
        self.number(f"{place}groups", reported.groups, counts[1])
        self.names(f"{place}method", [reported.method], [found.method])
        self.number(f"{place}mean", reported.mean, found.mean)
        self.number(f"{place}standard error", reported.standard_error, found.error)
        self.number(f"{place}lower end", reported.low, found.low)
        self.number(f"{place}upper end", reported.high, found.high)

    def bounds(self, place: str, reported: tuple[float, float] | None, found: tuple[float, float] | None) -> None:
        for name, at in (("lowest", 0), ("highest", 1)):
            self.number(f"{place}{name} mean", reported and reported[at], found and found[at])

    def usage(self, place: str, reported: Usage, found: Usage) -> None:
        for field in Usage.__struct_fields__:
            if field != "batched":
                self.number(f"{place}, {field}", getattr(reported, field), getattr(found, field))
        if reported.batched is not None or found.batched is not None:
            self.usage(f"{place} in batches", reported.batched or Usage(), found.batched or Usage())

    def cost(self, place: str, reported: Cost, found: Cost) -> None:
        for name in ("dollars", "saved_dollars", "orphaned_dollars"):
            self.number(f"{place}{name.replace('_', ' ')}", getattr(reported, name), getattr(found, name))
        self.names(f"{place}models without a price", reported.unpriced, found.unpriced)


def differences(report: RunReport, recount: Recount) -> Tally:
    """Each number of the report, and those that are not what the journal says."""
    tally = Tally()
    tally.names("evaluations", list(report.evaluations), list(recount.evaluations))
    tally.numbers_of("steps ", report.steps, recount.steps)
    tally.usage("tokens", report.usage, recount.usage)
    tally.usage("tokens saved", report.saved, recount.saved)
    tally.cost("", report.cost, _cost(recount, None))
    tally.number("anomalies of the journal", report.anomalies, recount.losses)
    tally.number("answers that were not looked at", report.unlooked, not_looked_at(recount))
    if not recount.removed:
        _compare_speeds(tally, report.models, recount)
    planned: Counter[tuple[str, str]] = Counter()
    for cell in recount.cells:
        planned[cell.task, cell.model] += cell.count
    told = {(cell.task, cell.model): cell for cell in report.cells}
    tally.names("cells", list(map("/".join, told)), list(map("/".join, planned)))
    odd = anomalous_answers(recount, report.evaluation)
    for where in (each for each in told if each in planned):
        _Cell(told[where], recount, report.evaluation, odd).compare(tally, planned[where])
    return tally


class _Cell:
    """One task with one model."""

    def __init__(self, told: CellReport, recount: Recount, evaluation: str, odd: Mapping[int, set[str]]) -> None:
        self._told, self._recount, self._odd = told, recount, odd
        self._place = f"{told.task}/{told.model}: "
        self._ordinals = list(recount.members(told.task, told.model))
        self._finished = {o: recount.finished[o] for o in self._ordinals if o in recount.finished}
        self._given = recount.counting(evaluation, self._ordinals)
        self._scorers = recount.evaluations.get(evaluation, [])
        self._graded = self._graded_scorers()
        for name in self._graded & self._given.keys():  # a row that says which grades are correct
            said = self._given[name]
            self._given[f"{name} correct"] = {
                o: Said(each.of, each.value == "correct" if isinstance(each.value, str) else each.value, each.failure)
                for o, each in said.items()
            }
        self._wrong = self._count_failed_as_wrong(evaluation)
        """By scorer: failed samples that count as wrong."""
        self._samples = {o: recount.sample_of(o) for o in self._ordinals}
        self._planned: dict[str, list[int]] = {}
        """The ordinals of each sample."""
        for o, sample in self._samples.items():
            self._planned.setdefault(sample, []).append(o)

    def _graded_scorers(self) -> set[str]:
        """Those whose labels are grades: the built-in one, and scorers that declare it."""
        own = [each for each in self._scorers if each.get("task", self._told.task) == self._told.task]
        return {
            str(each["name"])
            for each in own
            if each.get("function") == "grade" or each.get("scale") == {"": "label", "correct": "bool"}
        }

    def _count_failed_as_wrong(self, evaluation: str) -> dict[str, list[int]]:
        """Give them the lowest score of each scorer that has one, also of scorers that saw no answer."""
        failed = [o for o in self._ordinals if o in self._recount.failed]
        if self._task().get("counts", {}).get("failed") != "wrong" or not failed or evaluation in self._recount.chosen:
            return {}
        own = [str(each["name"]) for each in self._scorers if each.get("task", self._told.task) == self._told.task]
        unseen = [name for name in own if not any(f"{each}.".startswith(f"{name}.") for each in self._given)]
        found = {}
        for name in [*self._given, *unseen]:
            said = self._given.get(name, {})
            values = [each.value for each in said.values() if not each.failure]
            lowest = scales.possible(name, self._scorers, self._told.task, values).lowest
            if not math.isinf(lowest):
                found[name] = failed
                self._given[name] = {**said, **{o: Said(0, lowest or False, "") for o in failed}}
        return found

    def _task(self) -> Mapping[str, Any]:
        """As the spec has it."""
        tasks = self._recount.spec.get("tasks", ())
        return next((task for task in tasks if task["name"] == self._told.task), {})

    def _compare_wrong(self, tally: Tally, told: ScorerReport, said: Mapping[int, Said]) -> None:
        """What counts as wrong without a scorer, and the mean of the rest."""
        rules = {"filtered": "no_score", "empty": "no_score", "truncated": "as_is", **self._task().get("counts", {})}
        why = dict.fromkeys(self._wrong.get(told.scorer, ()), "failed")
        for o, each in said.items():
            marks = [mark for mark in self._finished[o].marks if rules[mark] != "as_is"] if o in self._finished else []
            if marks and rules[marks[0]] == "wrong" and each.value is False and not each.by_hand and not each.failure:
                why[o] = marks[0]
            elif each.unreadable and is_number(each.value):
                why[o] = "unreadable"
        place = f"{self._place}{told.scorer}: "
        reported = told.wrong.counts if told.wrong is not None else {}
        tally.numbers_of(f"{place}counts as wrong: ", reported, Counter(why.values()))
        rest: dict[str, list[float]] = {}
        for o, each in said.items():
            if o not in why and not each.failure and is_number(each.value):
                rest.setdefault(self._samples[o], []).append(float(each.value))
        if told.wrong is not None:
            mean = statistics.fmean(map(statistics.fmean, rest.values())) if rest else None
            tally.number(f"{place}mean of what is answered", told.wrong.answered_mean, mean)
            tally.number(f"{place}answered", told.wrong.answered, sum(map(len, rest.values())))

    def _compare_macro(self, tally: Tally, told: ScorerReport, reducer: str, values: Mapping[str, float]) -> None:
        """`values`: one of each sample."""
        reported = next((each for each in told.macro if each.reducer == reducer), None)
        place = f"{self._place}{told.scorer} {reducer}: macro "
        if reported is None:
            is_asked = self._task().get("macro") and values and (reducer or told.plain)
            tally.number(f"{place}rows", 0, 1 if is_asked else 0)
            return
        strata = {sample: self._recount.strata.get(ordinals[0]) for sample, ordinals in self._planned.items()}
        scored = {strata[sample] for sample in values}
        if None in strata.values() or scored != set(strata.values()):
            tally.number(f"{place}mean", reported.summary.mean, None)
            tally.number(f"{place}reasons", bool(reported.unknown), 1)
            return
        groups = list(map(self._group, values))
        mean, error = formulas.macro(list(values.values()), [strata[sample] for sample in values], groups)
        tally.number(f"{place}mean", reported.summary.mean, mean)
        tally.number(f"{place}standard error", reported.summary.standard_error, error)
        tally.number(f"{place}samples", reported.summary.n, len(values))
        for each in reported.strata:
            own = [value for sample, value in values.items() if strata[sample] == each.name]
            tally.number(f"{place}{each.name}: n", each.summary.n, len(own))
            tally.number(f"{place}{each.name}: mean", each.summary.mean, statistics.fmean(own))

    def compare(self, tally: Tally, planned: int) -> None:
        told, place, kept = self._told, self._place, self._finished.values()
        kinds = Counter(self._recount.failed[o] for o in self._ordinals if o in self._recount.failed)
        counts = {
            "planned": (told.planned, planned),
            "finished": (told.finished, len(kept)),
            "failed": (told.failed, kinds.total()),
            "unfinished": (told.unfinished, planned - len(kept) - kinds.total()),
            "input tokens": (told.usage.input_tokens, sum(each.input_tokens for each in kept)),
            "output tokens": (told.usage.output_tokens, sum(each.output_tokens for each in kept)),
        }
        for name, (reported, found) in counts.items():
            tally.number(f"{place}{name}", reported, found)
        tally.number(f"{place}seconds", told.seconds, math.fsum(each.seconds for each in kept), _ROUNDED)
        tally.numbers_of(f"{place}failed, ", told.failures, kinds)
        tally.numbers_of(f"{place}answers, ", told.marks, Counter(mark for each in kept for mark in each.marks))
        odd = Counter(kind for o in self._finished for kind in self._odd.get(o, ()))
        tally.numbers_of(f"{place}anomaly ", told.anomalies, odd)
        tally.cost(place, told.cost, _cost(self._recount, (told.task, told.model)))
        self._agreements(tally)
        scorers = {each.scorer: each for each in told.scorers}
        tally.names(f"{place}scorers", list(scorers), list(self._given))
        for name in (each for each in scorers if each in self._given):
            self._scorer(tally, scorers[name], self._given[name])

    def _scorer(self, tally: Tally, told: ScorerReport, said: Mapping[int, Said]) -> None:
        place = f"{self._place}{told.scorer}: "
        values = {o: each.value for o, each in said.items() if not each.failure}
        numbers = {o: float(value) for o, value in values.items() if is_number(value)}
        labels = Counter(value for value in values.values() if isinstance(value, str))
        tally.number(f"{place}no score", told.no_score, len(values) - len(numbers) - labels.total())
        tally.number(f"{place}scorer failed", told.failures, len(said) - len(values))
        tally.number(f"{place}edited by hand", told.edited, sum(each.by_hand for each in said.values()))
        scale = self._scale(tally, told, values)
        by_sample: dict[str, list[float]] = {}
        for o, number in numbers.items():
            by_sample.setdefault(self._samples[o], []).append(number)
        means = [statistics.fmean(each) for each in by_sample.values()]
        found = formulas.summary(means, list(map(self._group, by_sample)), scale, len(numbers))
        tally.summary(place, told.summary, found, (len(numbers), self._shared(by_sample)))
        tally.numbers_of(f"{place}label ", told.labels, labels)
        tally.numbers_of(f"{place}missing ", told.missing, Counter(self._why_missing(said, numbers)))
        every = [[numbers.get(o) for o in ordinals] for ordinals in self._planned.values()]
        tally.bounds(place, told.bounds, formulas.filled(every, scale))
        self._compare_wrong(tally, told, said)
        self._compare_macro(tally, told, "", {sample: statistics.fmean(each) for sample, each in by_sample.items()})
        reduced = {each.reducer: each for each in told.reduced}
        ways = stored_reductions(self._recount.spec).get(self._told.task, (Reduction(),))
        made = {how.label: self._reduced(how, values) for how in ways if how.name != MEAN}
        shown = [label for label, each in made.items() if numbers or any(isinstance(one, str) for one in each.values())]
        tally.names(f"{place}reducers", list(reduced), shown)
        for how in ways:
            if how.label in reduced and how.label in made:
                self._compare_reduced(tally, f"{place}{how.label}: ", reduced[how.label], how, made[how.label], scale)

    def _scale(self, tally: Tally, told: ScorerReport, values: Mapping[int, Any]) -> Possible:
        place, task = f"{self._place}{told.scorer}: ", self._told.task
        found = scales.possible(told.scorer, self._scorers, task, values.values())
        is_declared = scales.declared(told.scorer, self._scorers, task) is not None
        tally.number(f"{place}scale is declared", told.is_declared, is_declared)
        tally.number(f"{place}right or wrong", told.scale.is_bool, found.is_bool)
        for name, reported, end in (
            ("lowest", told.scale.lowest, found.lowest),
            ("highest", told.scale.highest, found.highest),
        ):
            tally.number(f"{place}{name} of the scale", reported, None if math.isinf(end) else end)
        return found

    def _why_missing(self, said: Mapping[int, Said], numbers: Mapping[int, float]) -> Iterator[str]:
        """Of each planned answer that is not in the mean. Labels are not missing where all are labels."""
        for o in self._ordinals:
            given = said.get(o)
            if o in numbers:
                continue
            if o not in self._finished:
                yield "failed" if o in self._recount.failed else "unfinished"
            elif given is not None and given.failure:
                yield "scorer_failed"
            elif given is not None and not isinstance(given.value, str):
                yield "no_score"
            elif given is None:
                yield "not_scored"
            elif numbers:
                yield "label"

    def _reduced(self, how: Reduction, values: Mapping[int, Any]) -> dict[str, float | str | None]:
        """Of each planned sample."""
        return {
            sample: formulas.reduced(
                how, [Given(values[o], self._answer(how, o)) for o in ordinals if o in values], len(ordinals)
            )
            for sample, ordinals in self._planned.items()
        }

    def _answer(self, how: Reduction, o: int) -> object:
        """What tells an answer from others: its text, or a scorer's label. Failed samples have one answer."""
        if o not in self._finished:
            return "none"
        if not how.answer:
            return self._finished[o].text
        said = self._given.get(how.answer, {}).get(o)
        label = None if said is None or said.failure else said.value
        return label.strip() if isinstance(label, str) else None

    def _agreements(self, tally: Tally) -> None:
        votes = {
            name: {o: each.value for o, each in said.items() if not each.failure} for name, said in self._given.items()
        }
        told = {each.scorer: each for each in self._told.agreement}
        found: dict[str, tuple[str, ...]] = {}
        for panel, roles in panels(self._scorers, self._told.task).items():
            for name in votes:
                is_of_it = name == panel or name.startswith(f"{panel}.")
                if is_of_it and all(votes.get(f"{name}.{role}") for role in roles):
                    found[name] = roles
        tally.names(f"{self._place}agreement", list(told), list(found))
        for name in (each for each in told if each in found):
            _compare_agreement(tally, self._place, told[name], [votes[f"{name}.{role}"] for role in found[name]])

    def _group(self, sample: str) -> Hashable:
        """What is independent: samples with the same group, or a sample."""
        group = next((self._recount.groups[o] for o in self._planned[sample] if o in self._recount.groups), None)
        return ("sample", sample) if group is None else ("group", group)

    def _shared(self, samples: Collection[str]) -> int | None:
        """How many groups there are; nothing if that is how many samples there are."""
        groups = len(set(map(self._group, samples)))
        return None if groups == len(samples) else groups

    def _compare_reduced(
        self,
        tally: Tally,
        place: str,
        told: Reduced,
        how: Reduction,
        made: Mapping[str, float | str | None],
        scale: Possible,
    ) -> None:
        labels = Counter(each for each in made.values() if isinstance(each, str))
        numbers = {sample: each for sample, each in made.items() if isinstance(each, float)}
        repeats = max(map(len, self._planned.values()))
        groups, answers = list(map(self._group, numbers)), len(numbers) * repeats
        scorer = next(each for each in self._told.scorers if any(told is one for one in each.reduced))
        self._compare_macro(tally, scorer, how.label, numbers)
        found = formulas.reduced_summary(how, list(numbers.values()), groups, scale, answers)
        tally.summary(place, told.summary, found, (len(numbers), self._shared(numbers)))
        tally.numbers_of(f"{place}label ", told.labels, labels)
        tally.number(f"{place}samples without a value", told.no_value, sum(each is None for each in made.values()))
        known = [[each] for each in made.values() if not isinstance(each, str)]
        tally.bounds(place, told.bounds, formulas.filled(known, formulas.reduced_scale(how, scale)))


def _compare_agreement(tally: Tally, place: str, told: Agreement, votes: Sequence[Mapping[int, Any]]) -> None:
    found = formulas.agreed(votes)
    name = f"{place}agreement on {told.scorer}, "
    tally.number(f"{name}n", told.n, found.n)
    tally.number(f"{name}say the same", told.agreement, found.share)
    tally.number(f"{name}alpha", told.alpha, found.alpha)
    tally.number(f"{name}kappa", told.kappa, found.kappa)


def _compare_speeds(tally: Tally, told: Sequence[ModelProfile], recount: Recount) -> None:
    found = {name: each for name, each in recount.speeds.models.items() if each.requests or each.phases}
    tally.names("models", [each.name for each in told], [name for name, _ in found])
    for each in told:
        worked = recount.speeds.worked if each.role else recount.speeds.asking
        speed, place = found.get((each.name, each.role)), f"{each.title}: "
        if speed is None:
            continue
        for name in COUNTS:
            tally.number(f"{place}{name.replace('_', ' ')}", getattr(each, name), getattr(speed, name))
        rates = (speed.requests / worked, speed.output_tokens / worked) if worked else (None, None)
        tally.number(f"{place}requests a second", each.requests_per_second, rates[0], _ROUNDED)
        tally.number(f"{place}output tokens a second", each.output_tokens_per_second, rates[1], _ROUNDED)
        tally.number(f"{place}held by rate limits", each.rate_limited_share, speed.limited_share, _ROUNDED)
        shown = {name: phase for name, phase in each.phases.items() if phase is not None}
        tally.names(f"{place}phases", list(shown), list(speed.phases))
        for phase in (name for name in shown if name in speed.phases):
            for name, (seconds, slack) in quantiles(speed.phases[phase]).items():
                tally.number(f"{place}{phase}, {name}", getattr(shown[phase], name), seconds, slack)


def _cost(recount: Recount, only: tuple[str, str] | None) -> Cost:
    """Of one cell, or of all."""
    told, cost = StoredSpec.of(recount.spec), Cost()
    for (task, model, role), account in recount.accounts.items():
        if only is not None and only != (task, model):
            continue
        price = told.prices(model).get(role)
        if price is None:
            used = account.paid.requests or account.saved.requests
            cost += Cost(unpriced=(f"{role} (a role)" if role else model,) if used else ())
        else:
            paid, saved, orphaned = map(price.dollars, (account.paid, account.saved, account.orphaned))
            cost += Cost(paid, saved, orphaned)
    return cost


def _told(number: float | None) -> str:
    return "nothing" if number is None else f"{number:.12g}"
