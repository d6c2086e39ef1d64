"""The data of the records that an evaluation writes. Every struct is one `d` of docs/format.md.

`o` is the key's plan ordinal: a fold marks it in a bitmap without looking at the key.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from holdfast.errors import BadRecordError
from holdfast.records.durations import Durations
from holdfast.records.line import Draft, draft, is_time
from holdfast.records.ranges import Count, Mode, Ordinal, Seconds, Total
from holdfast.records.record_types import Anomaly, Segment
from holdfast.records.samples import Answer, Message, Row, Usage


class Stored(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file beside the journal, pinned: how many lines, and the digest of its content."""

    count: Count
    digest: str
    size: Count = 0
    """Bytes of the file as it is stored; 0 in runs of earlier versions, which did not record it."""


class Cell(msgspec.Struct, frozen=True):
    """One task with one model: its ordinals [first, first + count), and where its lines begin in plan and data."""

    task: str
    model: str
    first: Count
    count: Count
    plan_at: Count
    data_at: Count
    block: Count = 1
    """Which of the run's plan and data files its lines are in."""
    data_block: Count | msgspec.UnsetType = msgspec.UNSET
    """Where its rows are in the data file of another block: the number of that block."""

    @property
    def rows_block(self) -> int:
        return self.block if self.data_block is msgspec.UNSET else self.data_block

    @property
    def identity(self) -> tuple[str, str, int]:
        """What a cell has in common with the one that replaces it. A cell without keys has the ordinal of the next."""
        return self.task, self.model, self.first


class Block(msgspec.Struct, frozen=True):
    """A part of the plan with its data: the first that a run began with, one that an extension added, or one that
    replaces cells.
    """

    number: Count
    plan: Stored
    data: Stored | None
    """None if it replaces cells: their rows stay where they are."""
    cells: tuple[Cell, ...]
    """Those that no later block replaces."""


class Parent(msgspec.Struct, frozen=True):
    """The run that a fork comes from, and how many of its steps were taken over."""

    run_id: str
    experiment: str
    uid: str
    steps: Count


class RunStarted(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first fact of a run: what was asked, exactly, and where the plan and the data are pinned."""

    run_id: str
    spec: dict[str, Any]
    plan: Stored
    data: Stored
    cells: tuple[Cell, ...] = ()
    code: dict[str, str] = msgspec.field(default_factory=dict)
    host: dict[str, Any] = msgspec.field(default_factory=dict)
    version: str = ""
    source: str = ""
    """The file that the spec was read from: the user's own modules lie beside it."""
    inputs: dict[str, "TaskInputs"] = msgspec.field(default_factory=dict)
    """By task: what no field of the spec shows."""
    parent: Parent | None = None


class TaskInputs(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a task is asked with beside its spec and its rows: the solver's code, and the examples shown first."""

    solver: str = ""
    """A digest of the solver's source."""
    shots: list[Row] = msgspec.field(default_factory=list)


class Change(msgspec.Struct, frozen=True):
    """One accepted difference between what is stored and what a resume brings."""

    field: str
    old: Any
    new: Any
    kind: str


class RunExtended(msgspec.Struct, frozen=True, omit_defaults=True):
    """More keys: a block of the plan, and the spec that means all of it."""

    changes: tuple[Change, ...]
    spec: dict[str, Any]
    plan: Stored
    data: Stored
    cells: tuple[Cell, ...]
    inputs: dict[str, TaskInputs] = msgspec.field(default_factory=dict)
    code: dict[str, str] = msgspec.field(default_factory=dict)
    host: dict[str, Any] = msgspec.field(default_factory=dict)
    version: str = ""


class RunReplanned(msgspec.Struct, frozen=True, omit_defaults=True):
    """Models were corrected before they gave an answer: plan block number `block` replaces their cells. Ordinals stay
    the same, and so do keys unless a model was renamed; `run.resumed` follows.
    """

    changes: tuple[Change, ...]
    spec: dict[str, Any]
    plan: Stored
    cells: tuple[Cell, ...]
    block: Count
    code: dict[str, str] = msgspec.field(default_factory=dict)
    host: dict[str, Any] = msgspec.field(default_factory=dict)
    version: str = ""
    renamed: dict[str, str] = msgspec.field(default_factory=dict)
    """Old names of models, with the new ones."""

    def replaced(self) -> dict[tuple[str, str, int], Cell]:
        """The new cells, by the identities of those that they replace."""
        old = {new: was for was, new in self.renamed.items()}
        return {(cell.task, old.get(cell.model, cell.model), cell.first): cell for cell in self.cells}


class RunResumed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process goes on with the run. `retried`: the ordinals of failed keys that get new attempts; None is all."""

    changes: tuple[Change, ...] = ()
    spec: dict[str, Any] | None = None
    code: dict[str, str] = msgspec.field(default_factory=dict)
    host: dict[str, Any] = msgspec.field(default_factory=dict)
    version: str = ""
    retried: tuple[Ordinal, ...] | None = None
    live: bool = False
    """The process that wrote the run was told of other limits; nothing was interrupted."""


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a person says of a run: a text, tags that are added or taken away."""

    text: str = ""
    add: list[str] = []
    remove: list[str] = []


class RunEnded(msgspec.Struct, frozen=True, omit_defaults=True):
    """run.completed, failed, cancelled and interrupted: the counts at the end, and why."""

    finished: Count
    failed: Count
    unfinished: Count
    reason: str = ""
    commits: Durations | None = None
    """How long records of this process took from being handed over to being durable, as far as somebody waited."""


class Asked(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request without what earlier steps of the same key already hold.

    The messages are the first `keep` of step `after`'s messages followed by its answer, then `new`. Parameters and
    tools are in this record, or in the step that `params_of` or `tools_of` names, which holds them itself.
    """

    new: list[Message]
    after: Count = 0
    keep: Count = 0
    role: str = ""
    params: dict[str, Any] = msgspec.field(default_factory=dict)
    params_of: Count = 0
    tools: list[dict[str, Any]] = msgspec.field(default_factory=list)
    tools_of: Count = 0

    @property
    def needs(self) -> set[int]:
        """The numbers of the steps without which this cannot be read."""
        return {self.after, self.params_of, self.tools_of} - {0}

    def renumbered(self, numbers: dict[int, int]) -> "Asked":
        """The same where the steps that it needs have other numbers."""
        after, params_of, tools_of = (
            numbers[each] if each else 0 for each in (self.after, self.params_of, self.tools_of)
        )
        return msgspec.structs.replace(self, after=after, params_of=params_of, tools_of=tools_of)

    def filled(self, earlier: Mapping[int, "Asked"]) -> "Asked":
        """With the parameters and tools that earlier steps hold. Those of a step that was lost stay away."""
        params, tools = earlier.get(self.params_of, self).params, earlier.get(self.tools_of, self).tools
        return msgspec.structs.replace(self, params=params, tools=tools)


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that went wrong, with a kind that a policy or a person can act on."""

    kind: str
    message: str
    detail: str = ""


class Called(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of a tool: its name, and what it was given."""

    tool: str
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)


class StepStarted(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that must not be made twice is about to be made. Without the step that follows, nobody knows whether."""

    o: Ordinal
    scope: str
    q: str
    c: Count = 0
    called: Called | None = None


class StepId(msgspec.Struct, frozen=True, array_like=True):
    """What names a step before there is one: the key's ordinal, the scope, the request and its count there."""

    o: Ordinal
    scope: str
    q: str
    c: Count = 0


class BatchJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job of a batch API, in up to three records: it is about to be sent (`requests`), the server has it (`id`), it
    has ended (`status`). Without the second nobody knows whether the server has it; the token finds it there.
    """

    token: str
    """Ours. Request number i is called `<token>-<i>` in the job."""
    line: str = ""
    """The field of the spec whose model is asked: `models.<name>` or `roles.<name>`."""
    requests: tuple[StepId, ...] = ()
    id: str = ""
    """The server's name for it."""
    status: str = ""
    """How it ended: the server's word, or `never sent` or `refused`."""
    answered: Count = 0
    """How many of its requests have a result that can be used: each becomes a step."""


class KeptFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of a sandbox: a file with its content in `blobs/<blob>`, a symbolic link, or a folder (neither)."""

    mode: Mode
    """Its permission bits."""
    blob: str = ""
    size: Count = 0
    link: str = ""


class Files(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a call changed in its sample's sandbox. All content is durable before the step is."""

    before: str
    """A digest of the sandbox that the call began with: these changes mean something only there."""
    changed: dict[str, KeptFile] = msgspec.field(default_factory=dict)
    """By path, new or other than before."""
    removed: list[str] = msgspec.field(default_factory=list)
    lost: str = ""
    """Why the sandbox could not be kept as the call left it. If the process ends here, the sample must begin anew."""


class Timing(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the time of a request went, in seconds. What is not here was nothing, or is not known."""

    queue: Seconds = 0.0
    """Before it was sent, over all of its tries. No part of the step's `seconds`."""
    limited: Seconds = 0.0
    """Of these, while a rate limit held back all requests to its model."""
    connect: Seconds = 0.0
    """Until there was a connection. Nothing if one was there."""
    first: Seconds = 0.0
    """From sending it to the first byte of the response."""
    lost: Seconds = 0.0
    """Under way in tries that failed."""


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One durable call. Exactly one of `answer`, `value`, `failure` is set, or `cancelled`."""

    o: Ordinal
    scope: str
    q: str
    c: Count = 0
    kind: str = "generate"
    asked: Asked | None = None
    called: Called | None = None
    once: bool = False
    """The call must not be made twice: a later attempt gets this one, however the attempt ended."""
    answer: Answer | None = None
    value: Any = msgspec.UNSET
    failure: Failure | None = None
    cancelled: bool = False
    files: Files | None = None
    """If the call changed files of its sample's sandbox."""
    seconds: Seconds = 0.0
    timing: Timing | None = None
    """Of a request to a model."""
    tries: Count = 1
    batch: str = ""
    """The token of the job of a batch API in which it was answered, for half the price."""
    origin: Count = 0
    """In a fork: the number that the parent's journal has for it. It was paid for there."""

    @property
    def usage(self) -> Usage:
        """Of its answer, if it has one, as a part of a sum."""
        return Usage() if self.answer is None else self.answer.usage.of_one(bool(self.batch))


class RoleSpent(msgspec.Struct, frozen=True, omit_defaults=True):
    """What of an attempt's tokens is of the model of one role."""

    usage: Usage = Usage()
    saved: Usage = Usage()
    orphaned_usage: Usage = Usage()

    def __add__(self, other: "RoleSpent") -> "RoleSpent":
        return RoleSpent(self.usage + other.usage, self.saved + other.saved, self.orphaned_usage + other.orphaned_usage)

    def __sub__(self, other: "RoleSpent") -> "RoleSpent":
        return RoleSpent(self.usage - other.usage, self.saved - other.saved, self.orphaned_usage - other.orphaned_usage)


class Spent(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an attempt took: steps asked live, replayed and orphaned; working seconds; the tokens of the steps asked
    live (`usage`) and of those replayed (`saved`).
    """

    live: Count = 0
    replayed: Count = 0
    orphaned: Count = 0
    orphaned_usage: Usage = Usage()
    usage: Usage = Usage()
    saved: Usage = Usage()
    seconds: Seconds = 0.0
    roles: dict[str, RoleSpent] = msgspec.field(default_factory=dict)
    """Of these tokens, by role, those that are not the evaluated model's."""

    def by_role(self) -> dict[str, RoleSpent]:
        """All of the tokens; the evaluated model's under the empty role."""
        own = RoleSpent(self.usage, self.saved, self.orphaned_usage)
        for each in self.roles.values():
            own -= each
        return {"": own, **self.roles}


class Bill(msgspec.Struct, omit_defaults=True):
    """What one model used in one cell. It holds no prices: they may still change."""

    requests: Count = 0
    """Requests that were sent, with retries."""
    usage: Usage = Usage()
    """Of the responses that this run paid for."""
    taken: Usage = Usage()
    """Of the responses that a fork took over: its parent paid for them."""
    saved: Usage = Usage()
    """Of the responses that were replayed instead of being requested again."""
    orphaned: Usage = Usage()
    """Of recorded responses that the code did not request again after a resume. They are a part of `usage`."""
    largest: Usage = Usage()
    """The largest of each number over all responses, also those that were taken over."""

    def note(self, usage: Usage) -> None:
        most = self.largest
        if not most.requests:
            self.largest = usage
        elif usage.input_tokens > most.input_tokens or usage.output_tokens > most.output_tokens:
            self.largest = most.at_least(usage)


class Totals(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a run had used when steps were removed from its journal (`recover --no-events`).

    The numbers replace what the records before this one add up to. Records behind it are added to them.
    """

    steps: Count = 0
    taken: Count = 0
    replayed: Count = 0
    orphaned: Count = 0
    usage: Usage = Usage()
    saved: Usage = Usage()
    bills: dict[str, dict[str, Bill]] = msgspec.field(default_factory=dict)
    """By cell (`task/model`) and role; the evaluated model has the empty role."""
    worked_seconds: Total = 0.0
    sitting: str = ""
    """When the last process began, if it did not record its end."""
    jobs: dict[str, Count] = msgspec.field(default_factory=dict)
    """By token of an open batch job: how many of its responses were steps."""
    profile: msgspec.Raw = msgspec.Raw(b"{}")
    """Durations, as `holdfast.state.Profile` stores them."""

    def __post_init__(self) -> None:
        if self.sitting and not is_time(self.sitting):
            raise ValueError("`sitting` is no time in UTC")


class SampleFinished(msgspec.Struct, frozen=True, omit_defaults=True):
    """A key's answer, self-contained: nothing else has to be read to score or export it."""

    o: Ordinal
    attempt: Count
    answer: Answer
    spent: Spent = Spent()
    scorers: Count = 0
    """How many scorers will judge it: an answer with none is never waiting for scores."""
    anomalies: dict[str, str] = msgspec.field(default_factory=dict)
    """What is odd about the answer, by kind, each with what shows it."""
    looked: Count = 0
    """The version of the list of anomalies that it was looked at with; 0 if it was not."""


class SampleFailed(msgspec.Struct, frozen=True, omit_defaults=True):
    """An attempt that gave no answer. `final`: no further attempt was allowed."""

    o: Ordinal
    attempt: Count
    failure: Failure
    final: bool = True
    spent: Spent = Spent()


class ScoreGiven(msgspec.Struct, frozen=True, omit_defaults=True):
    """One scorer's word on the answer in record `of`, within an evaluation. A failed scorer gives a failure, never a
    zero.
    """

    o: Ordinal
    of: Count
    evaluation: str
    scorer: str
    value: Any = None
    reason: str = ""
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    failure: Failure | None = None
    spent: Spent = Spent()
    """What asking a judge took, if this answer's scorers asked any: in the last of its scores."""
    seconds: Seconds = 0.0
    """What the scorer took, with the judges that it asked; in the first of the scores that it gave at a time."""
    last: bool = False
    """The last score of this answer in this evaluation: with it the answer is fully scored."""
    author: str = ""
    """Who set it by hand; what a scorer says has none. It counts over what the scorer says, before it or after it."""
    at: str = ""
    """Of one that was set by hand: when. Where it is taken over into another evaluation, the record is younger."""
    taken: str = ""
    """The evaluation that it was taken over from: its scorer was not asked again."""


class LookedAgain(msgspec.Struct, frozen=True, omit_defaults=True):
    """What another list of anomalies finds in the answer in record `of`; it stands in place of what was found before.
    An `anomaly` record with a key; those without one tell of losses of the journal.
    """

    o: Ordinal
    of: Count
    version: Count
    found: dict[str, str] = msgspec.field(default_factory=dict)


class ScoringStarted(msgspec.Struct, frozen=True):
    """An evaluation: one scorer configuration over a run."""

    evaluation: str
    scorers: list[dict[str, Any]]
    code: dict[str, str] = msgspec.field(default_factory=dict)
    name: str = ""


FACTS: dict[str, type[msgspec.Struct]] = {
    "segment": Segment,
    "run.started": RunStarted,
    "run.resumed": RunResumed,
    "run.extended": RunExtended,
    "run.replanned": RunReplanned,
    "run.completed": RunEnded,
    "run.failed": RunEnded,
    "run.cancelled": RunEnded,
    "run.interrupted": RunEnded,
    "step.started": StepStarted,
    "step": Step,
    "batch": BatchJob,
    "sample.finished": SampleFinished,
    "sample.failed": SampleFailed,
    "score": ScoreGiven,
    "score.started": ScoringStarted,
    "anomaly": Anomaly,
    "anomaly of a key": LookedAgain,
    "totals": Totals,
    "note": Note,
}
"""By type of record: what its data is. An anomaly with a key tells of an answer, one without tells of lost bytes."""
_decoders: dict[type[msgspec.Struct], msgspec.json.Decoder[Any]] = {}
Fact = TypeVar("Fact", bound=msgspec.Struct)


def draft_fact(kind: str, data: msgspec.Struct, key: str | None) -> Draft:
    """A draft of a record of a key. A long text of an answer is stored once (`Answer.as_stored`)."""
    return draft(kind, as_stored(data), key)


def as_stored(data: Fact) -> Fact:
    """The same fact with its answer, if it has one, as a record holds it. Only for encoding."""
    if not isinstance(data, Step | SampleFinished) or not isinstance(data.answer, Answer):
        return data
    stored = data.answer.as_stored()
    return data if stored is data.answer else msgspec.structs.replace(data, answer=stored)


def checked(kind: str, data: Fact, key: str) -> tuple[Draft, Fact]:
    """A draft that can be read again as what it is, and what is read: a copy that shares nothing with `data`.

    A number where a text belongs is refused before it is saved.
    """
    made = draft_fact(kind, data, key)
    decoder = _decoders.get(type(data))
    if decoder is None:
        decoder = _decoders[type(data)] = msgspec.json.Decoder(type(data))
    try:
        return made, decoder.decode(made.d)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadRecordError(f"a {kind} record of {key} would not be readable: {error}") from error
