"""The types of a spec: its grammar, its documentation and its resume rules in one place.

Each field carries its class (what changing it means for a resume) and one sentence that describes it; the sentence
appears in docs/fields.md and in `holdfast schema`. These types hold the effective spec: defaults are merged in and
every value is spelled out, so two specs mean the same if and only if they are equal.

Classes: `result` (changes an answer), `evaluation` (changes only scores),
`throughput` (changes only speed, extent or display), `place` (where things are), or `nested` (the fields inside carry
their own classes). Invariant: a type with an unclassified field fails when its module is imported.
"""

import typing
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, field

from holdfast.records import NO_CREDENTIALS, Usage, holds_credentials

CLASSES = frozenset({"result", "evaluation", "throughput", "place"})

RESULT = msgspec.Meta(extra={"class": "result"})
EVALUATION = msgspec.Meta(extra={"class": "evaluation"})
THROUGHPUT = msgspec.Meta(extra={"class": "throughput"})
PLACE = msgspec.Meta(extra={"class": "place"})
NESTED = msgspec.Meta(extra={"class": "nested"})


def described(sentence: str) -> msgspec.Meta:
    """The description of a field, for docs/fields.md and the JSON Schema."""
    return msgspec.Meta(description=sentence)


_classified: set[type[msgspec.Struct]] = set()

T = TypeVar("T", bound=msgspec.Struct)


def classified(kind: type[T]) -> type[T]:
    """Class decorator: raise TypeError if a field, also of a nested type, declares no class."""
    for name, declared in field_classes(kind):
        if declared is None:
            raise TypeError(f"{kind.__name__}.{name} declares no class; annotate it, for example with RESULT")
        inner = nested_type(kind, name) if declared == "nested" else None
        if inner is not None and inner not in _classified:
            classified(inner)
        if declared == "nested" and inner is None:
            raise TypeError(f"{kind.__name__}.{name} is declared NESTED, but its type is not a classified struct")
    _classified.add(kind)
    return kind


def field_classes(kind: type[msgspec.Struct]) -> Iterator[tuple[str, str | None]]:
    """Yield each field's name and class; the class is None if the field declares none."""
    hints = typing.get_type_hints(kind, include_extras=True)
    for each in msgspec.structs.fields(kind):
        metas = (meta for meta in getattr(hints[each.name], "__metadata__", ()) if isinstance(meta, msgspec.Meta))
        declared = (str(meta.extra["class"]) for meta in metas if meta.extra)
        yield each.name, next((name for name in declared if name in CLASSES or name == "nested"), None)


def nested_type(kind: type[msgspec.Struct], name: str) -> type[msgspec.Struct] | None:
    """Return the struct type of a field, also inside a list, dict or optional; None if there is none."""
    return _struct_in(typing.get_type_hints(kind)[name])


def _struct_in(hint: Any) -> type[msgspec.Struct] | None:
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return hint
    found = (_struct_in(argument) for argument in typing.get_args(hint))
    return next((each for each in found if each is not None), None)


Positive = Annotated[int, Meta(ge=1)]
Repeats = Annotated[int, Meta(ge=1, le=100_000)]
"""All keys of one sample are planned in memory."""
NotNegative = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Reducer = str | dict[str, dict[str, Any]]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a spec. Its fields are given by name, and unknown fields are an error."""


BATCH_PRICE = 0.5
"""Price of a request in a batch job, as a share of its normal price."""


@classified
class Price(_Part, frozen=True, kw_only=True):
    """The prices of a model in dollars. They change no answer."""

    input: Annotated[float, THROUGHPUT, Meta(ge=0), described("Dollars per million input tokens.")]
    output: Annotated[float, THROUGHPUT, Meta(ge=0), described("Dollars per million output tokens.")]
    cached_input: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        THROUGHPUT,
        described("Dollars per million input tokens that the server read from its cache; null: the price of `input`."),
    ] = None
    cache_write: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        THROUGHPUT,
        described("Dollars per million input tokens that the server wrote to its cache; null: the price of `input`."),
    ] = None
    request: Annotated[float, THROUGHPUT, Meta(ge=0), described("Dollars per request, in addition to its tokens.")] = (
        0.0
    )
    source: Annotated[str, THROUGHPUT, described("Where the prices come from, for reports.")] = ""

    def dollars(self, usage: Usage) -> float:
        """Return the cost of the usage. Cached tokens without a price of their own cost as much as other input, and
        requests in batch jobs cost half.
        """
        plain = max(usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens, 0)
        cached = self.input if self.cached_input is None else self.cached_input
        written = self.input if self.cache_write is None else self.cache_write
        tokens = self.input * plain + cached * usage.cached_tokens + written * usage.cache_write_tokens
        alone = (tokens + self.output * usage.output_tokens) / 1e6 + self.request * usage.requests
        return alone if usage.batched is None else alone - (1 - BATCH_PRICE) * self.dollars(usage.batched)


@classified
class Batch(_Part, frozen=True, kw_only=True):
    """Collects requests into jobs of the server's batch API: half the price, results within a day."""

    requests: Annotated[int, THROUGHPUT, Meta(ge=1, le=100_000), described("Most requests in one job.")] = 10_000
    megabytes: Annotated[Positive, THROUGHPUT, described("Most megabytes in one job.")] = 90
    samples: Annotated[
        Positive,
        THROUGHPUT,
        described("Most samples of this model in flight; replaces `concurrency.samples` and `max_connections`."),
    ] = 10_000
    quiet_seconds: Annotated[
        Seconds,
        THROUGHPUT,
        described("A job is submitted when no request was added for this long, at the latest after ten times as long."),
    ] = 10.0
    poll_seconds: Annotated[Seconds, THROUGHPUT, described("Longest pause between two polls of a job.")] = 60.0
    settle_seconds: Annotated[
        Seconds,
        THROUGHPUT,
        described("How long a new job may be missing in the server's list before it is submitted again."),
    ] = 60.0


@classified
class Model(_Part, frozen=True, kw_only=True):
    """A model to evaluate, or a model with a role, such as a judge."""

    name: Annotated[
        Name, RESULT, described("Name of the model in keys, tables and `--model`; default: the value of `model`.")
    ]
    provider: Annotated[Name, RESULT, described("Provider that sends the requests, such as `openai` or `anthropic`.")]
    model: Annotated[str, RESULT, described("Model name that is sent to the server.")] = ""
    base_url: Annotated[
        str | list[str], PLACE, described("Address of the server, or a list of addresses that share the requests.")
    ] = ""
    api_key_env: Annotated[str, PLACE, described("Environment variable that holds the API key.")] = ""
    headers: Annotated[
        dict[str, str],
        PLACE,
        described("Extra HTTP headers; `${VAR}` in them is replaced when a request is sent and never stored."),
    ] = field(default_factory=dict)
    params: Annotated[
        dict[str, Any],
        RESULT,
        described("Sampling parameters that are sent with every request, such as `temperature`."),
    ] = field(default_factory=dict)
    options: Annotated[
        dict[str, Any], RESULT, described("Settings of the provider itself; they are not sent as parameters.")
    ] = field(default_factory=dict)
    request_retries: Annotated[
        NotNegative, RESULT, described("Retries of one request after a time-out, a lost connection or a server error.")
    ] = 5
    record_raw: Annotated[bool, RESULT, described("Store the server's raw response with every answer.")] = False
    timeout_seconds: Annotated[
        Seconds, THROUGHPUT, described("Time limit for one request; with `stream`, between two pieces of the response.")
    ] = 600.0
    stream: Annotated[bool, THROUGHPUT, described("Receive responses as streams.")] = False
    max_connections: Annotated[Positive, THROUGHPUT, described("Most requests in flight to this model.")] = 64
    adaptive: Annotated[
        bool,
        THROUGHPUT,
        described(
            "Find the best number of requests in flight, up to `max_connections`; false: always use `max_connections`."
        ),
    ] = True
    requests_per_minute: Annotated[
        Positive | None, THROUGHPUT, described("Most requests per minute, of all workers; null: no limit.")
    ] = None
    tokens_per_minute: Annotated[
        Positive | None, THROUGHPUT, described("Most tokens per minute, of all workers; null: no limit.")
    ] = None
    patience_seconds: Annotated[
        float,
        THROUGHPUT,
        Meta(ge=0),
        described("How long to wait for a server that is down, overloaded or rate-limited before its failures count."),
    ] = 600.0
    first_contact_seconds: Annotated[
        Seconds | None,
        THROUGHPUT,
        described(
            "The same for a server that has not answered once in this run: raise it for a server that starts slowly. "
            "Null: 30, or `patience_seconds` if that is less."
        ),
    ] = None
    price: Annotated[Price | None, NESTED, described("Prices for cost reports and budgets.")] = None
    batch: Annotated[
        Batch | None, NESTED, described("Send the requests through the server's batch API; `true` uses the defaults.")
    ] = None

    def dollars(self, used: Usage) -> float | None:
        """Return what this usage would cost, at the batch price if the model has `batch`; None without a price."""
        usage = used.as_batched() if self.batch is not None else msgspec.structs.replace(used, batched=None)
        return None if self.price is None else self.price.dollars(usage)


@classified
class Shuffle(_Part, frozen=True, kw_only=True):
    """A fixed order that depends only on the seed and the ids of the rows. `shuffle: 7` is short for `{seed: 7}`."""

    seed: Annotated[int, RESULT, described("Seed of the order.")] = 0
    by: Annotated[
        str, RESULT, described("Column whose values are interleaved, so that every prefix has them in proportion.")
    ] = ""


@classified
class Stratified(_Part, frozen=True, kw_only=True):
    """A sample in which each value of a column keeps its share, rounded by largest remainders."""

    n: Annotated[Positive, RESULT, described("Number of rows.")]
    by: Annotated[str, RESULT, Meta(min_length=1), described("Column whose values keep their shares.")]


@classified
class Dataset(_Part, frozen=True, kw_only=True):
    """Where the rows are, what their columns mean, and which of them are used. The plan pins the rows, so the data may
    move. The selection is applied in the order `where`, `shuffle`, `sample`, `limit`.
    """

    path: Annotated[
        str | list[str],
        PLACE,
        described(
            "Data file, relative to the spec's folder; a list of files, a pattern such as `data/*.jsonl` (sorted by "
            "name), or an `https://` URL with `sha256`."
        ),
    ] = ""
    sha256: Annotated[str, PLACE, described("SHA-256 of the file at a URL, in hexadecimal.")] = ""
    hub: Annotated[str, PLACE, described("Data set of the Hugging Face Hub, such as `openai/gsm8k`.")] = ""
    config: Annotated[
        str | list[str],
        PLACE,
        described(
            "Configuration of the Hub data set; empty: its default, or the only one. A list: the rows of each, with "
            "its name in the column `config` and the row's number there in `config_row`."
        ),
    ] = ""
    split: Annotated[str, PLACE, described("Split of the Hub data set; empty: the only one.")] = ""
    revision: Annotated[
        str,
        PLACE,
        described("Branch, tag or commit of the Hub data set; the run stores the commit, as `main@COMMIT`."),
    ] = ""
    format: Annotated[
        str, RESULT, described("`jsonl`, `json`, `csv`, `tsv` or `parquet`; empty: from the file's name.")
    ] = ""
    convert: Annotated[
        str, RESULT, described("Benchmark whose conversion is applied to the rows before everything else; empty: none.")
    ] = ""
    columns: Annotated[
        list[str],
        RESULT,
        described("Columns to keep, besides those that other fields of `dataset` name; empty: all."),
    ] = field(default_factory=list)
    id: Annotated[
        str, RESULT, described("Column with the sample id; empty: `id` if it exists, else the row's number.")
    ] = ""
    input: Annotated[str, RESULT, described("Column with the input; empty: `input`, `question` or `prompt`.")] = ""
    target: Annotated[
        str, RESULT, described("Column with the expected answer; empty: `target`, `answer` or `label`.")
    ] = ""
    group: Annotated[str, EVALUATION, described("Column whose equal values mark related samples, for error bars.")] = ""
    files: Annotated[list[str], RESULT, described("Columns whose values are files: paths, URLs or `data:` URIs.")] = (
        field(default_factory=list)
    )
    files_root: Annotated[
        str, PLACE, described("Folder that contains all files that rows may name; empty: the folder of the data file.")
    ] = ""
    where: Annotated[
        str, RESULT, described("Use only rows for which this is true, such as `level >= 4 and subject in ['algebra']`.")
    ] = ""
    shuffle: Annotated[Shuffle | None, NESTED, described("Use the rows in a fixed order that a seed defines.")] = None
    sample: Annotated[Stratified | None, NESTED, described("Use a stratified sample of the rows.")] = None
    limit: Annotated[Positive | None, RESULT, described("Use only the first rows; null: all.")] = None

    @property
    def paths(self) -> list[str]:
        """`path` as a list; empty if there is none."""
        return list(self.path) if isinstance(self.path, list) else [self.path] if self.path else []

    @property
    def configs(self) -> list[str]:
        """`config` as a list; one empty name if there is none."""
        return list(self.config) if isinstance(self.config, list) else [self.config]

    @property
    def is_remote(self) -> bool:
        """Whether the rows come from the network."""
        return bool(self.hub or self.sha256)


@classified
class Fewshot(_Part, frozen=True, kw_only=True):
    """Examples shown before the question: `n` rows of a file, or of another split of the task's Hub data set."""

    path: Annotated[str, PLACE, described("Data file with the examples, relative to the spec's folder.")] = ""
    split: Annotated[
        str, PLACE, described("Split of the task's Hub data set with the examples, instead of `path`.")
    ] = ""
    n: Annotated[Positive, RESULT, described("Number of examples.")] = 1
    seed: Annotated[int, RESULT, described("Seed that selects the examples, if `pick` is `random`.")] = 0
    by: Annotated[
        str, RESULT, described("Column, such as the subject: examples have the same value as the sample.")
    ] = ""
    pick: Annotated[
        str,
        RESULT,
        Meta(pattern="^(first|random)$"),
        described("Which rows are examples: the `first` ones, or `random` ones that `seed` selects."),
    ] = "random"
    style: Annotated[
        str,
        RESULT,
        Meta(pattern="^(turns|text)$"),
        described("Show examples as earlier `turns` of the conversation, or as one `text` before the question."),
    ] = "turns"
    answer: Annotated[str, RESULT, described("Answer of an example, a template like `prompt`; empty: the target.")] = ""


@classified
class SampleLimits(_Part, frozen=True, kw_only=True):
    """Limits of one attempt at a sample; null means no limit."""

    seconds: Annotated[Seconds | None, RESULT, described("Most seconds; time in queues does not count.")] = None
    steps: Annotated[Positive | None, RESULT, described("Most model and tool calls.")] = None
    tokens: Annotated[Positive | None, RESULT, described("Most tokens; checked before each request.")] = None
    cost_usd: Annotated[
        Annotated[float, Meta(gt=0)] | None, RESULT, described("Most dollars; every model and role needs a price.")
    ] = None


@classified
class RunLimits(_Part, frozen=True, kw_only=True):
    """The budget of a run, over all resumes and workers. At it the run stops with exit code 6; raise it to continue."""

    cost_usd: Annotated[Annotated[float, Meta(gt=0)] | None, THROUGHPUT, described("Most dollars.")] = None
    tokens: Annotated[Positive | None, THROUGHPUT, described("Most tokens.")] = None
    requests: Annotated[Positive | None, THROUGHPUT, described("Most requests.")] = None
    seconds: Annotated[Seconds | None, THROUGHPUT, described("Most seconds of work, without pauses.")] = None


@classified
class Limits(_Part, frozen=True, kw_only=True):
    """Limits of samples and of the run."""

    sample: Annotated[SampleLimits, NESTED, described("Limits of one attempt at a sample.")] = SampleLimits()
    run: Annotated[RunLimits, NESTED, described("Budget of the whole run.")] = RunLimits()


@classified
class Sandbox(_Part, frozen=True, kw_only=True):
    """Where sandboxed tools such as `bash` and `python` run, and the limits of one call."""

    seconds: Annotated[Seconds, RESULT, described("Time limit of one call.")] = 60.0
    memory_mb: Annotated[Positive, RESULT, described("Most megabytes of memory.")] = 1024
    processes: Annotated[Positive, RESULT, described("Most processes at once.")] = 128
    output_kb: Annotated[Positive, RESULT, described("Most kilobytes of output that the model receives.")] = 32
    files_mb: Annotated[Positive, RESULT, described("Most megabytes of files in the work folder.")] = 64
    files_max: Annotated[Positive, RESULT, described("Most files in the work folder.")] = 10_000
    network: Annotated[bool, RESULT, described("Allow network access.")] = False
    image: Annotated[str, RESULT, described("Docker image to run calls in; empty: a local sandbox without Docker.")] = (
        ""
    )
    files: Annotated[
        dict[str, str],
        RESULT,
        described("Files to create before the first call: a path, and the column with its content."),
    ] = field(default_factory=dict)


_COUNTS = Meta(pattern="^(as_is|no_score|wrong|failed)$")


@classified
class Counts(_Part, frozen=True, kw_only=True):
    """How incomplete answers count: scored like any other (`as_is`), without a score (`no_score`), as false (`wrong`;
    scorers of labels give the label `wrong`), or as if every scorer had failed (`failed`). The field `failed` says how
    samples without an answer count.
    """

    filtered: Annotated[str, EVALUATION, _COUNTS, described("An answer that the server's content filter blocked.")] = (
        "no_score"
    )
    empty: Annotated[str, EVALUATION, _COUNTS, described("An empty answer.")] = "no_score"
    truncated: Annotated[str, EVALUATION, _COUNTS, described("An answer that was cut off at `max_tokens`.")] = "as_is"
    failed: Annotated[
        str,
        EVALUATION,
        Meta(pattern="^(no_score|wrong)$"),
        described(
            "A sample that failed for good: without a score (`no_score`), or false, on other scales the lowest value "
            "(`wrong`). Reports apply it; nothing is scored again."
        ),
    ] = "no_score"


@classified
class BenchmarkOrigin(_Part, frozen=True, kw_only=True):
    """The benchmark that a task was made from. The other fields hold the whole task, so this changes no answer."""

    name: Annotated[Name, THROUGHPUT, described("Name of the benchmark, with its variant.")]
    version: Annotated[Positive, THROUGHPUT, described("Version of the benchmark.")] = 1
    metric: Annotated[str, THROUGHPUT, described("Scorer that gives the result; empty: not known.")] = ""
    samples: Annotated[
        Positive | None, THROUGHPUT, described("Number of samples of the whole benchmark; null: not known.")
    ] = None
    copy: Annotated[
        bool, THROUGHPUT, described("Whether the task is an editable copy, which reports do not call the benchmark.")
    ] = False
    subset: Annotated[
        list[str], THROUGHPUT, described("Values of the column `by` that were selected; each must occur in the data.")
    ] = field(default_factory=list)
    by: Annotated[str, THROUGHPUT, described("Column that `subset` is about; empty: none.")] = ""
    changed: Annotated[
        list[str], THROUGHPUT, described("Fields of the task that differ from the benchmark; filled in automatically.")
    ] = field(default_factory=list)


@classified
class Task(_Part, frozen=True, kw_only=True):
    """A data set, how its questions are sent to models, and how the answers are scored."""

    name: Annotated[Name, RESULT, described("Name of the task in keys, tables and `--task`.")]
    dataset: Annotated[Dataset, NESTED, described("The rows to evaluate.")] = Dataset()
    system: Annotated[str, RESULT, described("System message; a template like `prompt`.")] = ""
    prompt: Annotated[str, RESULT, described("User message; `{column}` is replaced by the row's value.")] = ""
    messages: Annotated[
        list[dict[str, Any]],
        RESULT,
        described("Whole conversation to send instead of `system` and `prompt`; contents are templates."),
    ] = field(default_factory=list)
    template: Annotated[
        str, RESULT, Meta(pattern="^(fields|jinja)$"), described("Template language: `{column}` fields, or Jinja.")
    ] = "fields"
    fewshot: Annotated[Fewshot | None, NESTED, described("Examples to show before the question.")] = None
    solver: Annotated[
        str | dict[str, dict[str, Any]],
        RESULT,
        described("How an answer is produced: a built-in name or `module:function`, with arguments if needed."),
    ] = "chat"
    sandbox: Annotated[Sandbox | None, NESTED, described("Limits and files for sandboxed tools.")] = None
    scorers: Annotated[
        list[str | dict[str, dict[str, Any]]],
        EVALUATION,
        described("Scorers of the answers: built-in names or `module:function`, with arguments if needed."),
    ] = field(default_factory=list)
    reduce: Annotated[
        Reducer | list[Reducer],
        EVALUATION,
        described("How the scores of a sample's repeats become one number, such as `mean` or `pass@5`."),
    ] = "mean"
    counts: Annotated[
        Counts, NESTED, described("How empty, truncated and filtered answers and failed samples count.")
    ] = Counts()
    macro: Annotated[
        str,
        EVALUATION,
        described("Column whose values, such as subjects, weigh equally in a macro mean; empty: no macro mean."),
    ] = ""
    models: Annotated[
        Annotated[list[str], Meta(min_length=1)] | None, RESULT, described("Models to run this task with; null: all.")
    ] = None
    repeats: Annotated[Repeats, RESULT, described("Independent answers per sample.")] = 1
    sample_retries: Annotated[NotNegative, RESULT, described("Retries of a failed sample from its beginning.")] = 2
    benchmark: Annotated[
        BenchmarkOrigin | None, NESTED, described("Benchmark that provides the fields which the task does not set.")
    ] = None
    share: Annotated[
        str,
        THROUGHPUT,
        Meta(pattern="^(ok|no-text)$"),
        described("`no-text`: what is published leaves out the text of rows and answers."),
    ] = "ok"
    max_samples: Annotated[
        Positive | None, THROUGHPUT, described("Most samples of this task in flight; null: no limit of its own.")
    ] = None


@classified
class Concurrency(_Part, frozen=True, kw_only=True):
    """How much happens at once. Each model also has its own `max_connections`."""

    samples: Annotated[Positive, THROUGHPUT, described("Most samples in flight.")] = 256
    generate: Annotated[
        Positive | None, THROUGHPUT, described("Most requests in flight over all models; null: no limit.")
    ] = None
    score: Annotated[Positive, THROUGHPUT, described("Most answers that are scored at once.")] = 64


@classified
class WorkerResources(_Part, frozen=True, kw_only=True):
    """What `run --executor ray` reserves for each worker on its node."""

    cpus: Annotated[float, THROUGHPUT, Meta(ge=0), described("CPU cores.")] = 1.0
    gpus: Annotated[float, THROUGHPUT, Meta(ge=0), described("GPUs; a worker sees only its own.")] = 0.0
    memory_gb: Annotated[float, THROUGHPUT, Meta(ge=0), described("Gigabytes of memory; 0: none reserved.")] = 0.0


@classified
class Mirror(_Part, frozen=True, kw_only=True):
    """A copy of the run in an object store, updated while the run works."""

    url: Annotated[
        str, PLACE, Meta(min_length=1), described("Folder in the object store, such as `s3://bucket/evals`.")
    ]
    seconds: Annotated[Seconds, THROUGHPUT, described("Time between two uploads.")] = 5.0
    wait: Annotated[bool, THROUGHPUT, described("Wait for the upload before a response counts as saved.")] = False
    exclusive: Annotated[
        bool, THROUGHPUT, described("Claim the run in the store, so that no other machine writes it at the same time.")
    ] = True

    def __post_init__(self) -> None:
        if holds_credentials(self.url):
            raise ValueError(NO_CREDENTIALS)


@classified
class Spec(_Part, frozen=True, kw_only=True):
    """One evaluation: tasks, models and limits."""

    experiment: Annotated[Name, PLACE, described("Name of the family of runs; also the folder in the store.")] = (
        "default"
    )
    description: Annotated[str, THROUGHPUT, described("Free text about the run.")] = ""
    tags: Annotated[list[str], THROUGHPUT, described("Labels for finding and protecting runs.")] = field(
        default_factory=list
    )
    seed: Annotated[int, RESULT, described("Seed of all random choices.")] = 0
    limit: Annotated[Positive | None, RESULT, described("Use only the first samples of each task; null: all.")] = None
    samples: Annotated[list[str] | None, RESULT, described("Use only the samples with these ids; null: all.")] = None
    shard: Annotated[
        str,
        RESULT,
        Meta(pattern=r"^(|[1-9][0-9]{0,5}/[1-9][0-9]{0,5})$"),
        described("Use only this part of the keys, such as `3/8`; empty: all. `run --shard` sets it."),
    ] = ""
    record_data: Annotated[bool, RESULT, described("Store the data rows with the run.")] = True
    models: Annotated[list[Model], NESTED, Meta(min_length=1), described("Models to evaluate.")]
    roles: Annotated[
        dict[str, Model], NESTED, described("Models that help with the evaluation, such as a judge, by role name.")
    ] = field(default_factory=dict)
    tasks: Annotated[list[Task], NESTED, Meta(min_length=1), described("Tasks to run with every model.")]
    limits: Annotated[Limits, NESTED, described("Limits of samples and of the run.")] = Limits()
    mirror: Annotated[Mirror | None, NESTED, described("Copy the run to an object store while it runs.")] = None
    concurrency: Annotated[Concurrency, NESTED, described("How much happens at once.")] = Concurrency()
    workers: Annotated[WorkerResources, NESTED, described("What each worker on a cluster reserves.")] = (
        WorkerResources()
    )
    stall_seconds: Annotated[
        Seconds, THROUGHPUT, described("A run without any progress for this long is reported as stalled.")
    ] = 30.0
    on_stall: Annotated[
        str,
        THROUGHPUT,
        Meta(pattern="^(warn|cancel-sample)$"),
        described("What to do with a sample that hangs: report it (`warn`) or fail it (`cancel-sample`)."),
    ] = "warn"
    grace_seconds: Annotated[
        float, THROUGHPUT, Meta(ge=0), described("How long requests in flight may finish after an interrupt.")
    ] = 10.0
    fail_on_error: Annotated[
        float,
        THROUGHPUT,
        Meta(ge=0),
        described("Failed samples that are allowed before the exit code is 1: a share below 1, or a count."),
    ] = 0.0
    fail_on_error_in_cell: Annotated[
        Annotated[float, Meta(ge=0)] | None, THROUGHPUT, described("The same limit for each cell; null: none.")
    ] = None
    progress_file: Annotated[str, PLACE, described("File that always holds the run's current progress as JSON.")] = ""
    anomalies: Annotated[bool, THROUGHPUT, described("Check answers for anomalies.")] = True
    anomalies_except: Annotated[list[str], THROUGHPUT, described("Kinds of anomalies that are not reported.")] = field(
        default_factory=list
    )
