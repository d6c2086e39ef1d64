"""The data of the records that an evaluation writes. Every struct is one `d` of docs/format.md.

Field names are part of the format and never change. `o` is the key's ordinal in the plan: readers mark it in a bitmap
without parsing the key.
"""

from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from holdfast.errors import BadRecordError
from holdfast.records.durations import Durations
from holdfast.records.line import Anomaly, Draft, Segment, draft, is_time
from holdfast.records.samples import (
    TEXT_ONCE_CHARACTERS,
    Answer,
    Count,
    Message,
    Mode,
    Ordinal,
    Row,
    Seconds,
    Total,
    Usage,
)


class StoredFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A file beside the journal (plan or data), pinned by its number of lines and the digest of its content."""

    count: Count
    digest: str
    size: Count = 0
    """Bytes of the stored file; 0 in runs of earlier versions, which did not record it."""


class Cell(msgspec.Struct, frozen=True):
    """One task with one model: its ordinals [first, first + count), and where its lines begin in plan and data."""

    task: str
    model: str
    first: Count
    count: Count
    plan_at: Count
    data_at: Count
    block: Count = 1
    """The number of the plan and data files that hold its lines."""
    data_block: Count | msgspec.UnsetType = msgspec.UNSET
    """The number of the data file that holds its rows, if it is not `block`."""

    @property
    def rows_block(self) -> int:
        return self.block if self.data_block is msgspec.UNSET else self.data_block

    @property
    def identity(self) -> tuple[str, str, int]:
        """Equal for a cell and the one that replaces it. The first ordinal alone is not enough: a cell without keys has
        the same as the next cell.
        """
        return self.task, self.model, self.first


class Block(msgspec.Struct, frozen=True):
    """A part of the plan with its data: the one that a run started with, one that an extension added, or one that
    replaces cells.
    """

    number: Count
    plan: StoredFile
    data: StoredFile | None
    """None if it replaces cells: their rows stay in the old data file."""
    cells: tuple[Cell, ...]
    """The cells that no later block replaces."""


class Parent(msgspec.Struct, frozen=True):
    """The run that was forked, and how many of its steps were copied."""

    run_id: str
    experiment: str
    uid: str
    steps: Count


class RunStarted(msgspec.Struct, frozen=True, omit_defaults=True):
    """The first fact of a run: the exact spec, and the digests of plan and data."""

    run_id: str
    spec: dict[str, Any]
    plan: StoredFile
    data: StoredFile
    cells: tuple[Cell, ...] = ()
    code: dict[str, str] = msgspec.field(default_factory=dict)
    host: dict[str, Any] = msgspec.field(default_factory=dict)
    version: str = ""
    source: str = ""
    """The file that the spec was read from. The user's own modules are beside it."""
    included: tuple[str, ...] = ()
    """The files that it included. The user's own modules may be beside these too."""
    inputs: dict[str, "TaskInputs"] = msgspec.field(default_factory=dict)
    """By task: inputs that no field of the spec shows."""
    parent: Parent | None = None
    shards: Count = 0
    """How many shards answer the plan; 0 if this journal itself holds the answers."""


class TaskInputs(msgspec.Struct, frozen=True, omit_defaults=True):
    """Inputs of a task beside its spec and its rows: the solver's code, and the few-shot examples."""

    solver: str = ""
    """A digest of the solver's source."""
    shots: list[Row] = msgspec.field(default_factory=list)


class Change(msgspec.Struct, frozen=True):
    """One accepted difference between the stored spec and that of a resume."""

    field: str
    old: Any
    new: Any
    kind: str


class RunExtended(msgspec.Struct, frozen=True, omit_defaults=True):
    """More keys: a new block of the plan, and the spec of the whole extended run."""

    changes: tuple[Change, ...]
    spec: dict[str, Any]
    plan: StoredFile
    data: StoredFile
    cells: tuple[Cell, ...]
    inputs: dict[str, TaskInputs] = msgspec.field(default_factory=dict)
    code: dict[str, str] = msgspec.field(default_factory=dict)
    host: dict[str, Any] = msgspec.field(default_factory=dict)
    version: str = ""


class RunReplanned(msgspec.Struct, frozen=True, omit_defaults=True):
    """Models were corrected before they had given an answer: plan block number `block` replaces their cells. Ordinals
    stay the same, and so do keys unless a model was renamed. `run.resumed` follows.
    """

    changes: tuple[Change, ...]
    spec: dict[str, Any]
    plan: StoredFile
    cells: tuple[Cell, ...]
    block: Count
    code: dict[str, str] = msgspec.field(default_factory=dict)
    host: dict[str, Any] = msgspec.field(default_factory=dict)
    version: str = ""
    renamed: dict[str, str] = msgspec.field(default_factory=dict)
    """The new names of models, by their old names."""

    def replaced(self) -> dict[tuple[str, str, int], Cell]:
        """The new cells, by the identities of the cells that they replace."""
        old = {new: was for was, new in self.renamed.items()}
        return {(cell.task, old.get(cell.model, cell.model), cell.first): cell for cell in self.cells}


class RunResumed(msgspec.Struct, frozen=True, omit_defaults=True):
    """A process continues the run. `retried`: the ordinals of failed keys that get new attempts; None means all."""

    changes: tuple[Change, ...] = ()
    spec: dict[str, Any] | None = None
    code: dict[str, str] = msgspec.field(default_factory=dict)
    host: dict[str, Any] = msgspec.field(default_factory=dict)
    version: str = ""
    retried: tuple[Ordinal, ...] | None = None
    live: bool = False
    """The running process received other limits (`tune`); nothing was interrupted."""
    round: Count = 0
    """In a shard: how many rounds its run had begun, as `run.resumed` records of the root journal (docs/format.md)."""


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """A person's note about a run: a text, tags to add, tags to remove."""

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
    """How long records of this process took from `append` to being durable. Records without a waiting caller are not
    included.
    """


class StoredRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request, stored without the parts that earlier steps of the same key already contain.

    Its messages are the first `keep` messages of step `after`, that step's answer, and then `new`. Its parameters and
    tools are in this record, or in the step that `params_of` or `tools_of` names.
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
        """The numbers of the steps that are needed to reconstruct this request."""
        return {self.after, self.params_of, self.tools_of} - {0}

    def renumbered(self, numbers: dict[int, int]) -> "StoredRequest":
        """The same request with new numbers for the steps that it needs."""
        after, params_of, tools_of = (
            numbers[each] if each else 0 for each in (self.after, self.params_of, self.tools_of)
        )
        return msgspec.structs.replace(self, after=after, params_of=params_of, tools_of=tools_of)

    def filled(self, earlier: Mapping[int, "StoredRequest"]) -> "StoredRequest":
        """The same request with the parameters and tools of earlier steps. Those of a lost step are left out."""
        params, tools = earlier.get(self.params_of, self).params, earlier.get(self.tools_of, self).tools
        return msgspec.structs.replace(self, params=params, tools=tools)


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """A failure, with a kind that a retry policy or a person can act on."""

    kind: str
    message: str
    detail: str = ""


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool call: the tool's name and its arguments."""

    tool: str
    arguments: dict[str, Any] = msgspec.field(default_factory=dict)


class StepStarted(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that must not be made twice is about to be made. If no step follows, it is unknown whether it was made."""

    o: Ordinal
    scope: str
    q: str
    c: Count = 0
    called: ToolCall | None = None


class StepId(msgspec.Struct, frozen=True, array_like=True):
    """The identity of a step before it is recorded: the key's ordinal, the scope, the request digest, and its count
    among equal requests in that scope.
    """

    o: Ordinal
    scope: str
    q: str
    c: Count = 0


class BatchJob(msgspec.Struct, frozen=True, omit_defaults=True):
    """A job of a batch API, in up to three records: it is about to be sent (`requests`), the server has accepted it
    (`id`), it has ended (`status`). Without the second record it is unknown whether the server has it; then the job is
    searched on the server by its token.
    """

    token: str
    """Holdfast's id of the job. Request number i has the id `<token>-<i>`."""
    line: str = ""
    """The field of the spec with the model: `models.<name>` or `roles.<name>`."""
    requests: tuple[StepId, ...] = ()
    id: str = ""
    """The server's id of the job."""
    status: str = ""
    """How it ended: the server's status, or `never sent` or `refused`."""
    answered: Count = 0
    """How many of its requests have a usable result. Each becomes a step."""


class KeptFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of a sandbox: a file with its content in `blobs/<blob>`, a symbolic link, or else a folder."""

    mode: Mode
    """Its permission bits."""
    blob: str = ""
    size: Count = 0
    link: str = ""


class FileChanges(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a call changed in its sample's sandbox. All content is durable before the step is."""

    before: str
    """A digest of the sandbox before the call. The changes apply only to that state."""
    changed: dict[str, KeptFile] = msgspec.field(default_factory=dict)
    """New and changed entries, by path."""
    removed: list[str] = msgspec.field(default_factory=list)
    lost: str = ""
    """Why the sandbox's state after the call could not be saved. After a crash the sample must start again."""


class Timing(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where the time of a request went, in seconds. 0 also means unknown."""

    queue: Seconds = 0.0
    """Waiting before it was sent, over all tries. Not a part of the step's `seconds`."""
    limited: Seconds = 0.0
    """The part of `queue` in which a rate limit blocked all requests to the model."""
    connect: Seconds = 0.0
    """Establishing a connection; 0 if one was open."""
    first: Seconds = 0.0
    """From sending the request to the first byte of the response."""
    lost: Seconds = 0.0
    """Spent in tries that failed."""


class Step(msgspec.Struct, frozen=True, omit_defaults=True):
    """One durable call. Exactly one of `answer`, `value`, `failure` is set, or `cancelled`."""

    o: Ordinal
    scope: str
    q: str
    c: Count = 0
    kind: str = "generate"
    asked: StoredRequest | None = None
    called: ToolCall | None = None
    once: bool = False
    """The call must not be made twice: a later attempt receives this result, however the first attempt ended."""
    answer: Answer | None = None
    value: Any = msgspec.UNSET
    failure: Failure | None = None
    cancelled: bool = False
    files: FileChanges | None = None
    """Set if the call changed files of its sample's sandbox."""
    seconds: Seconds = 0.0
    timing: Timing | None = None
    """Set for requests to a model."""
    tries: Count = 1
    batch: str = ""
    """The token of the batch job that answered it, usually for half the price."""
    origin: Count = 0
    """In a fork: the step's record number in the parent's journal. The parent paid for it."""

    @property
    def usage(self) -> Usage:
        """The usage of its answer, if it has one, as a part of a sum."""
        return Usage() if self.answer is None else self.answer.usage.of_one(bool(self.batch))


class RoleSpent(msgspec.Struct, frozen=True, omit_defaults=True):
    """The part of an attempt's tokens that the model of one role used."""

    usage: Usage = Usage()
    saved: Usage = Usage()
    orphaned_usage: Usage = Usage()

    def __add__(self, other: "RoleSpent") -> "RoleSpent":
        return RoleSpent(self.usage + other.usage, self.saved + other.saved, self.orphaned_usage + other.orphaned_usage)

    def __sub__(self, other: "RoleSpent") -> "RoleSpent":
        return RoleSpent(self.usage - other.usage, self.saved - other.saved, self.orphaned_usage - other.orphaned_usage)


class Spent(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an attempt used: the number of live, replayed and orphaned steps, working seconds, and the tokens of live
    steps (`usage`) and of replayed ones (`saved`).
    """

    live: Count = 0
    replayed: Count = 0
    orphaned: Count = 0
    orphaned_usage: Usage = Usage()
    usage: Usage = Usage()
    saved: Usage = Usage()
    seconds: Seconds = 0.0
    roles: dict[str, RoleSpent] = msgspec.field(default_factory=dict)
    """The part of these tokens that other models than the evaluated one used, by role."""

    def by_role(self) -> dict[str, RoleSpent]:
        """All tokens by role; those of the evaluated model have the empty role."""
        own = RoleSpent(self.usage, self.saved, self.orphaned_usage)
        for each in self.roles.values():
            own -= each
        return {"": own, **self.roles}


class Bill(msgspec.Struct, omit_defaults=True):
    """What one model used in one cell. It has no prices, because they may still change."""

    requests: Count = 0
    """Requests that were sent, including retries."""
    usage: Usage = Usage()
    """Tokens of the responses that this run paid for."""
    taken: Usage = Usage()
    """Tokens of the responses that a fork copied. The parent paid for them."""
    saved: Usage = Usage()
    """Tokens of the responses that were replayed instead of requested again."""
    orphaned: Usage = Usage()
    """Tokens of recorded responses that the code did not request again after a resume. A part of `usage`."""
    twice: Usage = Usage()
    """Tokens of answers to samples that had one already. A part of `usage`."""
    largest: Usage = Usage()
    """The largest of each number over all responses, including copied ones."""

    def note(self, response: Usage, *, batched: bool = False) -> None:
        most = self.largest
        if not most.requests:
            self.largest = response.of_one(batched)
        elif response.input_tokens > most.input_tokens or response.output_tokens > most.output_tokens:
            self.largest = most.at_least(response.of_one(batched))


class Totals(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sums of a run at the time when steps were removed from its journal (`recover --no-events`).

    They replace the sums over the records before this one. Later records are added to them.
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
    """When the last process started, if it did not record its end."""
    jobs: dict[str, Count] = msgspec.field(default_factory=dict)
    """By token of an open batch job: how many of its responses are recorded as steps."""
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
    """How many scorers will score it. An answer with none never waits for scores."""
    anomalies: dict[str, str] = msgspec.field(default_factory=dict)
    """Anomalies of the answer, by kind, each with its evidence."""
    looked: Count = 0
    """The version of the anomaly checks that were applied; 0 if none were."""


class SampleFailed(msgspec.Struct, frozen=True, omit_defaults=True):
    """An attempt that gave no answer. `final`: no further attempt was allowed."""

    o: Ordinal
    attempt: Count
    failure: Failure
    final: bool = True
    spent: Spent = Spent()


class ScoreGiven(msgspec.Struct, frozen=True, omit_defaults=True):
    """One scorer's result for the answer in record `of`, within an evaluation. A scorer that fails gives a failure,
    never a zero.
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
    """What the judges of this answer's scorers used. Only in the last score of the answer."""
    seconds: Seconds = 0.0
    """The scorer's duration, including its judges. If it gave several scores at once, only in the first one."""
    last: bool = False
    """The last score of this answer in this evaluation: with it the answer is fully scored."""
    author: str = ""
    """The person who set the score by hand; empty for scorers. It overrides the scorer's result, earlier or later."""
    at: str = ""
    """When a score was set by hand. The record itself is later if the score was copied to another evaluation."""
    taken: str = ""
    """The evaluation from which the score was copied. The scorer did not run again."""
    unreadable: bool = False
    """See `Score`. Records of earlier versions have no mark."""


class AnomaliesRechecked(msgspec.Struct, frozen=True, omit_defaults=True):
    """The anomalies that another version of the checks finds in the answer in record `of`. They replace earlier ones.

    It is an `anomaly` record with a key; anomaly records without a key are about lost bytes of the journal.
    """

    o: Ordinal
    of: Count
    version: Count
    found: dict[str, str] = msgspec.field(default_factory=dict)


class GivenModel(msgspec.Struct, frozen=True, omit_defaults=True):
    """The model of a role, as it was given for one evaluation. Without its address and headers, which change no score
    and may hold secrets.
    """

    provider: str
    model: str = ""
    params: dict[str, Any] = msgspec.field(default_factory=dict)
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    price: dict[str, Any] | None = None


class ScoringStarted(msgspec.Struct, frozen=True):
    """An evaluation: one scorer configuration applied to a run."""

    evaluation: str
    scorers: list[dict[str, Any]]
    code: dict[str, str] = msgspec.field(default_factory=dict)
    name: str = ""
    part: str = ""
    """Which answers were chosen to be scored, as options of `score`. Empty: all. A part does not become the current
    evaluation.
    """
    roles: dict[str, GivenModel] = msgspec.field(default_factory=dict)
    """Models of roles that were given for this evaluation, instead of those in the run's spec."""

    def bill_name(self, role: str) -> str:
        """The name under which the requests of a role are counted: `judge`, or `judge=openai/gpt-x` if its model was
        given for this evaluation. So the requests of different models are never added up at one price.
        """
        given = self.roles.get(role)
        return role if given is None else f"{role}={'/'.join(filter(None, (given.provider, given.model)))}"


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
    "anomaly of a key": AnomaliesRechecked,
    "totals": Totals,
    "note": Note,
}
"""The struct of each record type. An anomaly with a key is about an answer, one without is about lost bytes."""
_decoders: dict[type[msgspec.Struct], msgspec.json.Decoder[Any]] = {}
Fact = TypeVar("Fact", bound=msgspec.Struct)


def draft_fact(kind: str, data: msgspec.Struct, key: str | None) -> Draft:
    """A draft of a record. A long text of its answer is stored only once (`Answer.as_stored`)."""
    return draft(kind, as_stored(data), key)


def as_stored(data: Fact) -> Fact:
    """The same fact with its answer, if it has one, as a record stores it. Only for encoding."""
    answer = getattr(data, "answer", None)
    if not isinstance(answer, Answer) or not isinstance(answer.text, str) or len(answer.text) < TEXT_ONCE_CHARACTERS:
        return data
    return msgspec.structs.replace(data, answer=answer.as_stored())


def checked(kind: str, data: Fact, key: str) -> tuple[Draft, Fact]:
    """A draft of a record, and its data decoded again: a copy that shares nothing with `data`.

    BadRecordError if it could not be decoded, for example a number instead of a text. So it is refused before it is
    saved.
    """
    made = draft(kind, as_stored(data), key)
    decoder = _decoders.get(type(data))
    if decoder is None:
        decoder = _decoders[type(data)] = msgspec.json.Decoder(type(data))
    try:
        return made, decoder.decode(made.d)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadRecordError(f"a {kind} record of {key} would not be readable: {error}") from error
