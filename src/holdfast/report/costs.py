"""What a run cost: recorded usage, cell by cell and model by model, at the prices in its spec.

Dollars are never stored. They follow from recorded usage and the prices in the run's spec, which are filled in at start
and on resume. A model without a price is reported as unpriced, never counted as free.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.errors import FormatError
from holdfast.records import Bill, Usage, cell_names, cell_of
from holdfast.report.text import dollars
from holdfast.spec import Counts, Price
from holdfast.state import Story, role_prices

Prices = Mapping[str, Price | None]

_NO_USAGE = Usage()


class _Model(msgspec.Struct, frozen=True):
    name: str = ""
    price: Price | None = None


_COMMIT_LENGTH, _SHORT = 40, 7


class StoredBenchmark(msgspec.Struct, frozen=True):
    """The benchmark that a task was made from: see `spec.BenchmarkOrigin`."""

    name: str = ""
    version: int = 1
    metric: str = ""
    samples: int | None = None
    subset: list[str] = []
    changed: list[str] = []
    copy: bool = False
    revision: str = ""
    """Of the data set of the task: a commit, or `main@COMMIT` if the benchmark names no commit."""
    sha256: str = ""

    @property
    def title(self) -> str:
        return f"{self.name} version {self.version}"

    @property
    def commit(self) -> str:
        """What decides the rows: a commit of the Hub, or the digest of a file; empty if neither is known."""
        return self.sha256 or self.revision.rpartition("@")[2]

    @property
    def is_unverified(self) -> bool:
        """Whether the revision was resolved when the run began: another run may get other rows."""
        return bool(self.revision) and len(self.revision) != _COMMIT_LENGTH

    @property
    def data(self) -> str:
        """`main@84b5128 (unverified)`, a short commit, or empty."""
        if self.sha256:
            return f"sha256:{self.sha256[:_SHORT]}"
        name, at, commit = self.revision.rpartition("@")
        short = commit[:_SHORT] if at or not self.is_unverified else commit
        return f"{name}{at}{short}{' (unverified)' if self.is_unverified else ''}"

    @property
    def described(self) -> str:
        return f"{self.title}, data {self.data}" if self.data else self.title


class _Dataset(msgspec.Struct, frozen=True):
    revision: str = ""
    sha256: str = ""


class _Task(msgspec.Struct, frozen=True):
    name: str = ""
    dataset: _Dataset = _Dataset()
    counts: Counts = Counts()
    macro: str = ""
    benchmark: StoredBenchmark | None = None


class StoredSpec(msgspec.Struct, frozen=True):
    """The few fields of a stored spec that a report needs. Ignoring the rest lets it read specs of other versions."""

    models: list[_Model] = []
    roles: dict[str, _Model] = {}
    tasks: list[_Task] = []

    @classmethod
    def of(cls, spec: dict[str, Any]) -> "StoredSpec":
        try:
            return msgspec.convert(spec, cls)
        except msgspec.ValidationError as error:
            raise FormatError(f"the spec in the journal cannot be read ({error}); upgrade Holdfast") from error

    def prices(self, model: str) -> Prices:
        """Prices by role; the evaluated model has the empty role."""
        evaluated = next((each.price for each in self.models if each.name == model), None)
        return {"": evaluated} | {role: each.price for role, each in self.roles.items()}

    def counts(self, task: str) -> Counts:
        return next((each.counts for each in self.tasks if each.name == task), Counts())

    def macro(self, task: str) -> str:
        """The column whose values weigh equally in a macro mean; empty: none."""
        return next((each.macro for each in self.tasks if each.name == task), "")

    def benchmarks(self) -> dict[str, StoredBenchmark]:
        """By task; without tasks that are no benchmarks."""
        found = ((each.name, each.dataset, each.benchmark) for each in self.tasks if each.benchmark is not None)
        return {
            name: msgspec.structs.replace(benchmark, revision=dataset.revision, sha256=dataset.sha256)
            for name, dataset, benchmark in found
        }


class Cost(msgspec.Struct, frozen=True):
    """Amounts in dollars; None if no price is known."""

    dollars: float | None = None
    """Paid in this run, whether the answers were used or not."""
    saved_dollars: float | None = None
    """What replayed answers would have cost if requested again."""
    orphaned_dollars: float | None = None
    """The part of `dollars` for recorded answers that the solver did not request again after a resume."""
    unpriced: tuple[str, ...] = ()
    """Models that were used but have no price. The sums do not include them."""

    def __add__(self, other: "Cost") -> "Cost":
        return Cost(
            _sum((self.dollars, other.dollars)),
            _sum((self.saved_dollars, other.saved_dollars)),
            _sum((self.orphaned_dollars, other.orphaned_dollars)),
            tuple(dict.fromkeys((*self.unpriced, *other.unpriced))),
        )

    def __str__(self) -> str:
        """`$1.20`, `$1.20 and more`, or empty without any price."""
        return "" if self.dollars is None else f"{dollars(self.dollars)}{' and more' if self.unpriced else ''}"


class PaidTwice(msgspec.Struct, frozen=True):
    """Responses that were paid for twice: two workers, or two merged runs, answered the same sample."""

    answers: int = 0
    usage: Usage = Usage()
    dollars: float | None = None
    """None if a model has no price."""


def paid_twice(story: Story, others: Iterable[tuple[str, str, Usage]] = ()) -> PaidTwice:
    """`others`: key, role and usage of responses that do not count, to samples that were answered later."""
    spec, roles = StoredSpec.of(story.spec), role_prices(story)
    found = [(cell, role, bill.twice) for cell, bills in story.bills.items() for role, bill in bills.items()]
    found += [(cell_of(key), role, usage) for key, role, usage in others]
    usage, amounts = Usage(), list[float | None]()
    for cell, role, each in found:
        if each.requests:
            price = {**spec.prices(cell_names(cell)[1]), **roles}.get(role)
            usage += each
            amounts.append(None if price is None else price.dollars(each))
    return PaidTwice(usage.requests, usage, None if None in amounts else _sum(amounts))


class CostLine(msgspec.Struct, frozen=True):
    """One model in one cell: the evaluated model, or the one in `role`."""

    task: str
    model: str
    role: str
    """The name of the role; `judge=openai/gpt-x` for a model that was given for an evaluation with `score --role`."""
    requests: int
    """HTTP requests sent, including retries."""
    usage: Usage
    saved: Usage
    orphaned: Usage
    taken: Usage
    """Copied by a fork: its parent paid for it."""
    cost: Cost
    finished: int
    """Finished answers of the cell."""
    price: Price | None = None

    def __add__(self, other: "CostLine") -> "CostLine":
        """The same cell and role in another run. The price is unknown if the two differ."""
        return msgspec.structs.replace(
            self,
            requests=self.requests + other.requests,
            usage=self.usage + other.usage,
            saved=self.saved + other.saved,
            orphaned=self.orphaned + other.orphaned,
            taken=self.taken + other.taken,
            cost=self.cost + other.cost,
            finished=self.finished + other.finished,
            price=self.price if self.price == other.price else None,
        )

    @property
    def dollars_per_sample(self) -> float | None:
        return None if self.cost.dollars is None or not self.finished else self.cost.dollars / self.finished


class CostReport(msgspec.Struct, frozen=True):
    """The output of `cost RUN… --json`: a contract, fields are only ever added."""

    runs: tuple[str, ...]
    lines: tuple[CostLine, ...]
    requests: int
    usage: Usage
    cost: Cost
    finished: int
    limits: dict[str, Any] = msgspec.field(default_factory=dict)
    """The run budget, if the report covers one run."""


def cost_lines(story: Story, finished: Mapping[tuple[str, str], int]) -> list[CostLine]:
    """In the order of the cells. `finished`: the number of answers by task and model."""
    spec, roles = StoredSpec.of(story.spec), role_prices(story)
    found: dict[tuple[str, str, str], CostLine] = {}
    for cell, bills in story.bills.items():
        task, model = cell_names(cell)
        prices = {**spec.prices(model), **roles}
        for role, bill in bills.items():
            price = prices.get(role)
            name = f"{role} (a role)" if role else model
            found[task, model, role] = CostLine(
                task=task,
                model=model,
                role=role,
                requests=bill.requests,
                usage=bill.usage,
                saved=bill.saved,
                orphaned=bill.orphaned,
                taken=bill.taken,
                cost=cost_of(bill, price, name),
                finished=finished.get((task, model), 0),
                price=price,
            )
    order = {(cell.task, cell.model): number for number, cell in enumerate(story.cells)}
    return sorted(found.values(), key=lambda line: (order.get((line.task, line.model), len(order)), line.role))


def sum_costs(runs: Iterable[tuple[str, list[CostLine]]], limits: dict[str, Any]) -> CostReport:
    """The costs of several runs. Lines of the same cell and role are added up, even if their prices differ."""
    names: list[str] = []
    lines: dict[tuple[str, str, str], CostLine] = {}
    for name, every in runs:
        names.append(name)
        for line in every:
            place = (line.task, line.model, line.role)
            lines[place] = lines[place] + line if place in lines else line
    return CostReport(
        runs=tuple(names),
        lines=tuple(lines.values()),
        requests=sum(line.requests for line in lines.values()),
        usage=sum((line.usage for line in lines.values()), Usage()),
        cost=total(lines.values()),
        finished=sum({(line.task, line.model): line.finished for line in lines.values()}.values()),
        limits=limits,
    )


def total(lines: Iterable[CostLine]) -> Cost:
    return sum((line.cost for line in lines), Cost())


def cost_of(bill: Bill, price: Price | None, name: str) -> Cost:
    if price is None:
        used = bill.usage.requests or bill.saved.requests
        return Cost(unpriced=(name,) if used else ())
    return Cost(price.dollars(bill.usage), price.dollars(bill.saved), price.dollars(bill.orphaned))


def used_dollars(used: Mapping[str, Usage], prices: Prices) -> float | None:
    """The cost of what an attempt used, by role; None if a used model has no price."""
    dollars = 0.0
    for role, usage in used.items():
        if usage != _NO_USAGE:
            price = prices.get(role)
            if price is None:
                return None
            dollars += price.dollars(usage)
    return dollars


def unpriced_line(unpriced: Iterable[str]) -> str:
    return f"no price known for {', '.join(unpriced)}: give price, in dollars for a million tokens"


def _sum(amounts: Iterable[float | None]) -> float | None:
    known = [each for each in amounts if each is not None]
    return sum(known) if known else None
