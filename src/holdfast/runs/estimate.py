"""Estimates the requests, tokens and dollars of a run before it starts, as ranges. Sends nothing, stores nothing.

A cell is estimated from its finished answers in an earlier run of the experiment (`load_observed_usage`). Without
those, from its prompts: one request per answer, the approximate tokens of the prompts as input, and up to `max_tokens`
as output. Amounts that nothing limits have no upper end. This module also finds the prices of models.
"""

import os
from collections.abc import Iterator, Mapping

import msgspec

from holdfast.engine import output_limit
from holdfast.errors import HoldfastError, SpecError
from holdfast.models import LEAST, MOST, PACKAGE, count_message_tokens, find_rates, is_installed
from holdfast.plan import PreparedTask, models_of
from holdfast.records import Message, Sample, Usage
from holdfast.report import dollars, text_of
from holdfast.runs.store.lookup import newest_runs
from holdfast.runs.summary import Observed
from holdfast.solve import ScoredContinuation
from holdfast.spec import Model, Price, Spec, expand

_COUNTED_ROWS = 1000
_OBSERVED_ERROR = 0.25
"""The assumed relative error of the mean of earlier answers."""


class Range(msgspec.Struct, frozen=True):
    """`high` is None if the amount has no upper limit."""

    low: float
    high: float | None

    def __add__(self, other: "Range") -> "Range":
        return Range(self.low + other.low, None if self.high is None or other.high is None else self.high + other.high)

    def times(self, factor: float) -> "Range":
        return Range(self.low * factor, None if self.high is None else self.high * factor)


_NONE = Range(0.0, 0.0)


class Prompts(msgspec.Struct, frozen=True):
    """The first messages of a task's samples."""

    rows: int
    requests: int
    """Of one repeat: one for each sample, or one for each continuation that is scored."""
    tokens: int
    """Approximate tokens of one repeat. Long data sets are extrapolated from their first rows by length."""
    files: int
    first: dict[str, list[Message]]
    """The messages of the first samples, by id."""
    continuations: dict[str, list[ScoredContinuation]]
    """What is scored instead of generated, of the first samples, by id; empty for most solvers."""


class CellEstimate(msgspec.Struct, frozen=True):
    """The estimate of one cell."""

    task: str
    model: str
    answers: int
    requests: Range
    input_tokens: Range
    output_tokens: Range
    dollars: Range | None
    """None if the model has no price."""
    of: str
    """What the estimate is based on: `prompts`, or the id of an earlier run."""
    unpriced: tuple[str, ...] = ()


class Estimate(msgspec.Struct, frozen=True):
    """The output of `cost SPEC --json`. A contract: fields are only ever added."""

    cells: tuple[CellEstimate, ...]
    requests: Range
    tokens: Range
    dollars: Range | None
    unpriced: tuple[str, ...]
    limits: dict[str, float]
    """`limits.run`: those that are set."""

    def over(self) -> Iterator[str]:
        """One sentence for each limit that the run may reach. Amounts without an estimate are not mentioned: the limit
        exists for exactly that case.
        """
        amounts = {"cost_usd": self.dollars, "tokens": self.tokens, "requests": self.requests}
        for name, limit in self.limits.items():
            amount = amounts.get(name)
            if amount is None or not (amount.low > limit or (amount.high or 0.0) > limit):
                continue
            unit = "" if name == "cost_usd" else f" {name}"
            if amount.low > limit:
                needed, likely = f"about {_format_amount(name, amount.low)}{unit} or more", "will probably"
            else:
                needed, likely = (
                    f"{_format_amount(name, amount.low)} to {_format_amount(name, amount.high or 0.0)}{unit}",
                    "may",
                )
            allowed = f"limits.run.{name} is {limit:{',.0f' if unit else 'g'}}"
            yield f"{needed} are needed, and {allowed}: the run {likely} stop there, with exit 6, and can be resumed"


def _format_amount(name: str, amount: float) -> str:
    return dollars(amount) if name == "cost_usd" else f"{amount:,.0f}"


def estimate(spec: Spec, works: Mapping[str, PreparedTask], seen: Mapping[tuple[str, str], Observed]) -> Estimate:
    """Estimate a run. `seen`: usage of earlier runs by task and model. `spec` must have its prices (`with_prices`)."""
    cells: list[CellEstimate] = []
    for name, work in works.items():
        models = models_of(spec, work.task)
        needed = any((name, model.name) not in seen for model in models)
        prompts = read_prompts(work, spec) if needed else None
        for model in models:
            before = seen.get((name, model.name))
            if before is not None:
                rows = prompts.rows if prompts else sum(1 for _ in work.samples(spec, surveyed=True))
                cells.append(_by_answers(spec, name, model, rows * work.task.repeats, before))
            elif prompts is not None:
                cells.append(_by_prompts(work, model, prompts))
    priced = [cell.dollars for cell in cells if cell.dollars is not None]
    limits = msgspec.to_builtins(spec.limits.run)
    return Estimate(
        cells=tuple(cells),
        requests=sum((cell.requests for cell in cells), _NONE),
        tokens=sum((cell.input_tokens + cell.output_tokens for cell in cells), _NONE),
        dollars=sum(priced, _NONE) if priced else None,
        unpriced=tuple(dict.fromkeys(name for cell in cells for name in cell.unpriced)),
        limits={name: limit for name, limit in limits.items() if limit is not None},
    )


def read_prompts(work: PreparedTask, spec: Spec, shown: int = 0) -> Prompts:
    """Render the first messages of every sample. Tokens are counted in the first rows only, characters in all, because
    counting tokens is slow. `shown`: how many samples' messages to return.
    """
    rows = requests = files = characters = counted = tokens = 0
    first: dict[str, list[Message]] = {}
    continuations: dict[str, list[ScoredContinuation]] = {}
    for sample in work.samples(spec, surveyed=True):
        messages = work.renderer.messages(sample)
        scored = _continuations(work, sample, messages)
        sent = [{"content": each.context + each.continuation} for each in scored] or messages
        length = sum(len(text_of(message.get("content"))) for message in sent)
        characters += length
        requests += len(scored) or 1
        if rows < _COUNTED_ROWS:
            counted += length
            tokens += sum(map(count_message_tokens, sent))
        if work.task.dataset.files:
            contents = [message["content"] for message in messages if isinstance(message.get("content"), list)]
            parts = [part for content in contents for part in content if isinstance(part, dict)]
            files += sum(part.get("type") != "text" for part in parts)
        rows += 1
        if rows <= shown:
            first[sample.id] = messages
            continuations |= {sample.id: scored} if scored else {}
    total = round(tokens * characters / counted) if counted else tokens
    return Prompts(rows, requests, total, files, first, continuations)


def _continuations(work: PreparedTask, sample: Sample, messages: list[Message]) -> list[ScoredContinuation]:
    try:
        return work.solver.continuations(sample, messages)
    except (TypeError, ValueError):
        return []  # choices that cannot be scored: this sample will fail, the others will not


def _by_prompts(work: PreparedTask, model: Model, prompts: Prompts) -> CellEstimate:
    """Estimate from prompts. Only `chat` and solvers with a preview are known to send these requests; for others the
    prompts are a lower bound.
    """
    is_scored = work.solver.preview is not None
    known = work.solver.name == "chat" or is_scored
    answers, requests = prompts.rows * work.task.repeats, prompts.requests * work.task.repeats
    tokens = prompts.tokens * work.task.repeats
    most = 1 if is_scored else output_limit(model.params) if known else None
    read = Range(tokens * LEAST, tokens * MOST if known and not prompts.files else None)
    written = Range(requests, None if most is None else requests * most)
    dollars, low = None, model.dollars(Usage(round(read.low), round(written.low), requests=requests))
    if low is not None:
        high = None
        if read.high is not None and written.high is not None:
            high = model.dollars(Usage(round(read.high), round(written.high), requests=requests))
        dollars = Range(low, high)
    return CellEstimate(
        task=work.task.name,
        model=model.name,
        answers=answers,
        requests=Range(requests, requests if known else None),
        input_tokens=read,
        output_tokens=written,
        dollars=dollars,
        of="prompts",
        unpriced=() if model.price is not None else (model.name,),
    )


def _by_answers(spec: Spec, task: str, model: Model, answers: int, before: Observed) -> CellEstimate:
    """Estimate from the mean usage of an answer in an earlier run."""
    models = {"": model} | spec.roles
    share = answers / before.finished
    around = Range(share * (1 - _OBSERVED_ERROR), share * (1 + _OBSERVED_ERROR))
    whole = sum(before.used.values(), Usage())
    costs = {role: models[role].dollars(used) if role in models else None for role, used in before.used.items()}
    known = [cost for cost in costs.values() if cost is not None]
    return CellEstimate(
        task=task,
        model=model.name,
        answers=answers,
        requests=around.times(whole.requests),
        input_tokens=around.times(whole.input_tokens),
        output_tokens=around.times(whole.output_tokens),
        dollars=around.times(sum(known)) if known else None,
        of=before.run_id,
        unpriced=tuple(role or model.name for role, cost in costs.items() if cost is None),
    )


def with_prices(spec: Spec, stored: Spec | None = None, environ: Mapping[str, str] = os.environ) -> Spec:
    """Return the spec with prices filled in: the model's own, else the stored one of the run, else the listed one."""
    known = {} if stored is None else {_identity(model): model.price for model in _models(stored)}

    def priced(model: Model) -> Model:
        price = model.price or known.get(_identity(model)) or _listed(model, environ)
        return model if price is model.price else msgspec.structs.replace(model, price=price)

    roles = {name: priced(model) for name, model in spec.roles.items()}
    return msgspec.structs.replace(spec, models=[priced(model) for model in spec.models], roles=roles)


def check_budget(spec: Spec) -> None:
    """SpecError if `cost_usd` is limited and a model has no price: the limit could never be reached."""
    if spec.limits.run.cost_usd is None:
        return
    for model in _models(spec):
        if model.price is None:
            listed = "" if is_installed() else f", or install holdfast[prices] for the list of {PACKAGE}"
            raise SpecError(
                f"limits.run.cost_usd: no price known for {model.name!r}: give it price: {{input: …, output: …}}, in "
                f"dollars for a million tokens{listed}"
            )


def _models(spec: Spec) -> list[Model]:
    return [*spec.models, *spec.roles.values()]


def _identity(model: Model) -> tuple[str, str, str]:
    return model.name, model.provider, model.model


def _listed(model: Model, environ: Mapping[str, str]) -> Price | None:
    try:
        urls = [model.base_url] if isinstance(model.base_url, str) else model.base_url
        base_url, _ = expand(urls[0] if urls else "", environ, "base_url")  # several URLs serve one model at one price
    except SpecError:
        return None  # a missing variable is reported when the connection is opened
    found = find_rates(model.provider, model.model, base_url)
    return None if found is None else msgspec.convert(msgspec.to_builtins(found), Price)


_RUNS_MAX = 20
"""How many of the newest runs of an experiment are read for an estimate."""


def load_observed_usage(spec: Spec, store: str) -> Mapping[tuple[str, str], Observed]:
    """The usage of earlier runs of the experiment by task and model, from the newest run that has finished answers.
    Runs count only where provider, model name and parameters are the same as in `spec`.
    """
    from holdfast.runs.run import Run  # late: a start without an estimate does not need it

    current = {model.name: (model.provider, model.model, model.params) for model in spec.models}
    found: dict[tuple[str, str], Observed] = {}
    for place in newest_runs(store, spec.experiment, _RUNS_MAX):
        try:
            with Run(place) as run:
                observed = run.observed()
                models = run.spec().models
        except (HoldfastError, OSError, msgspec.ValidationError):
            continue  # an estimate does not need every run: skip those that cannot be read
        same = {each.name for each in models if (each.provider, each.model, each.params) == current.get(each.name)}
        for (task, model), each in observed.items():
            if model in same:
                found.setdefault((task, model), each)
    return found
