"""What a user may ask for. These types are the spec's grammar, its documentation and its resume rules at once.

Effective: defaults are merged in and every value is spelled out, so two specs mean the same if and only if these are
equal.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta, field

from holdfast.records.redaction import NO_CREDENTIALS, holds_credentials
from holdfast.records.samples import Usage
from holdfast.spec.field_classes import EVALUATION, NESTED, PLACE, RESULT, THROUGHPUT, classified

Positive = Annotated[int, Meta(ge=1)]
NotNegative = Annotated[int, Meta(ge=0)]
Seconds = Annotated[float, Meta(gt=0)]
Name = Annotated[str, Meta(min_length=1, max_length=200)]
Reducer = str | dict[str, dict[str, Any]]


class _Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A part of a spec: fields by name only, and none that we do not know."""


BATCH_PRICE = 0.5
"""What an answer of a batch API costs, as a part of what it costs alone."""


@classified
class Price(_Part, frozen=True, kw_only=True):
    """What a model costs, in dollars for a million tokens, and for each request. It changes no answer."""

    input: Annotated[float, THROUGHPUT, Meta(ge=0)]
    output: Annotated[float, THROUGHPUT, Meta(ge=0)]
    cached_input: Annotated[Annotated[float, Meta(ge=0)] | None, THROUGHPUT] = None
    cache_write: Annotated[Annotated[float, Meta(ge=0)] | None, THROUGHPUT] = None
    request: Annotated[float, THROUGHPUT, Meta(ge=0)] = 0.0
    source: Annotated[str, THROUGHPUT] = ""

    def dollars(self, usage: Usage) -> float:
        """Tokens that a cache gave or took cost what other input does, where there is no price of their own. What was
        answered in jobs costs half.
        """
        plain = max(usage.input_tokens - usage.cached_tokens - usage.cache_write_tokens, 0)
        cached = self.input if self.cached_input is None else self.cached_input
        written = self.input if self.cache_write is None else self.cache_write
        tokens = self.input * plain + cached * usage.cached_tokens + written * usage.cache_write_tokens
        alone = (tokens + self.output * usage.output_tokens) / 1e6 + self.request * usage.requests
        return alone if usage.batched is None else alone - (1 - BATCH_PRICE) * self.dollars(usage.batched)


@classified
class Batch(_Part, frozen=True, kw_only=True):
    """Requests are gathered into jobs of a server's batch API: half the price, within a day. The model is the same."""

    requests: Annotated[int, THROUGHPUT, Meta(ge=1, le=100_000)] = 10_000
    megabytes: Annotated[Positive, THROUGHPUT] = 90
    samples: Annotated[Positive, THROUGHPUT] = 10_000
    quiet_seconds: Annotated[Seconds, THROUGHPUT] = 10.0
    poll_seconds: Annotated[Seconds, THROUGHPUT] = 60.0
    settle_seconds: Annotated[Seconds, THROUGHPUT] = 60.0


@classified
class Model(_Part, frozen=True, kw_only=True):
    """A model to evaluate, or one that plays a role."""

    name: Annotated[Name, RESULT]
    provider: Annotated[Name, RESULT]
    model: Annotated[str, RESULT] = ""
    base_url: Annotated[str | list[str], PLACE] = ""
    api_key_env: Annotated[str, PLACE] = ""
    headers: Annotated[dict[str, str], PLACE] = field(default_factory=dict)
    params: Annotated[dict[str, Any], RESULT] = field(default_factory=dict)
    options: Annotated[dict[str, Any], RESULT] = field(default_factory=dict)
    request_retries: Annotated[NotNegative, RESULT] = 5
    record_raw: Annotated[bool, RESULT] = False
    timeout_seconds: Annotated[Seconds, THROUGHPUT] = 600.0
    stream: Annotated[bool, THROUGHPUT] = False
    max_connections: Annotated[Positive, THROUGHPUT] = 64
    adaptive: Annotated[bool, THROUGHPUT] = True
    requests_per_minute: Annotated[Positive | None, THROUGHPUT] = None
    tokens_per_minute: Annotated[Positive | None, THROUGHPUT] = None
    patience_seconds: Annotated[float, THROUGHPUT, Meta(ge=0)] = 600.0
    price: Annotated[Price | None, NESTED] = None
    batch: Annotated[Batch | None, NESTED] = None

    def dollars(self, used: Usage) -> float | None:
        """What it costs to ask for so much, in jobs if that is how it is asked; None without a price."""
        asked = used.as_batched() if self.batch is not None else msgspec.structs.replace(used, batched=None)
        return None if self.price is None else self.price.dollars(asked)


@classified
class Dataset(_Part, frozen=True, kw_only=True):
    """Where the rows are and what their columns mean. Content is pinned by the plan, so a path is only a place."""

    path: Annotated[str, PLACE] = ""
    format: Annotated[str, RESULT] = ""
    id: Annotated[str, RESULT] = ""
    input: Annotated[str, RESULT] = ""
    target: Annotated[str, RESULT] = ""
    group: Annotated[str, EVALUATION] = ""
    files: Annotated[list[str], RESULT] = field(default_factory=list)
    files_root: Annotated[str, PLACE] = ""


@classified
class Fewshot(_Part, frozen=True, kw_only=True):
    """Examples shown before the question: `n` rows of a file, chosen by `seed`."""

    path: Annotated[str, PLACE, Meta(min_length=1)]
    n: Annotated[Positive, RESULT] = 1
    seed: Annotated[int, RESULT] = 0


@classified
class SampleLimits(_Part, frozen=True, kw_only=True):
    """What one attempt at a sample may use."""

    seconds: Annotated[Seconds | None, RESULT] = None
    steps: Annotated[Positive | None, RESULT] = None
    tokens: Annotated[Positive | None, RESULT] = None
    cost_usd: Annotated[Annotated[float, Meta(gt=0)] | None, RESULT] = None


@classified
class RunLimits(_Part, frozen=True, kw_only=True):
    """What a run may use, over all its resumes, before it stops with exit 6. Raise it, and the run goes on."""

    cost_usd: Annotated[Annotated[float, Meta(gt=0)] | None, THROUGHPUT] = None
    tokens: Annotated[Positive | None, THROUGHPUT] = None
    requests: Annotated[Positive | None, THROUGHPUT] = None
    seconds: Annotated[Seconds | None, THROUGHPUT] = None


@classified
class Limits(_Part, frozen=True, kw_only=True):
    """What may be used."""

    sample: Annotated[SampleLimits, NESTED] = SampleLimits()
    run: Annotated[RunLimits, NESTED] = RunLimits()


@classified
class Sandbox(_Part, frozen=True, kw_only=True):
    """Where `bash`, `python` and other sandboxed tools of a task work, and what one call of them may use."""

    seconds: Annotated[Seconds, RESULT] = 60.0
    memory_mb: Annotated[Positive, RESULT] = 1024
    processes: Annotated[Positive, RESULT] = 128
    output_kb: Annotated[Positive, RESULT] = 32
    files_mb: Annotated[Positive, RESULT] = 64
    files_max: Annotated[Positive, RESULT] = 10_000
    network: Annotated[bool, RESULT] = False
    image: Annotated[str, RESULT] = ""
    files: Annotated[dict[str, str], RESULT] = field(default_factory=dict)


_COUNTS = Meta(pattern="^(as_is|no_score|wrong|failed)$")


@classified
class Counts(_Part, frozen=True, kw_only=True):
    """How an answer that is none, or not all of one, counts: scored like any other (`as_is`), not scored at all
    (`no_score`), as false (`wrong`), or as an answer on which every scorer failed (`failed`).
    """

    filtered: Annotated[str, EVALUATION, _COUNTS] = "no_score"
    empty: Annotated[str, EVALUATION, _COUNTS] = "no_score"
    truncated: Annotated[str, EVALUATION, _COUNTS] = "as_is"


@classified
class Task(_Part, frozen=True, kw_only=True):
    """A data set, how it is asked, and how the answers are scored."""

    name: Annotated[Name, RESULT]
    dataset: Annotated[Dataset, NESTED] = Dataset()
    system: Annotated[str, RESULT] = ""
    prompt: Annotated[str, RESULT] = ""
    messages: Annotated[list[dict[str, Any]], RESULT] = field(default_factory=list)
    template: Annotated[str, RESULT, Meta(pattern="^(fields|jinja)$")] = "fields"
    fewshot: Annotated[Fewshot | None, NESTED] = None
    solver: Annotated[str | dict[str, dict[str, Any]], RESULT] = "chat"
    sandbox: Annotated[Sandbox | None, NESTED] = None
    scorers: Annotated[list[str | dict[str, dict[str, Any]]], EVALUATION] = field(default_factory=list)
    reduce: Annotated[Reducer | list[Reducer], EVALUATION] = "mean"
    counts: Annotated[Counts, NESTED] = Counts()
    models: Annotated[Annotated[list[str], Meta(min_length=1)] | None, RESULT] = None
    repeats: Annotated[Positive, RESULT] = 1
    sample_retries: Annotated[NotNegative, RESULT] = 2
    max_samples: Annotated[Positive | None, THROUGHPUT] = None


@classified
class Concurrency(_Part, frozen=True, kw_only=True):
    """How many things happen at once. Models have their own `max_connections`."""

    samples: Annotated[Positive, THROUGHPUT] = 256
    generate: Annotated[Positive | None, THROUGHPUT] = None
    score: Annotated[Positive, THROUGHPUT] = 64


@classified
class Mirror(_Part, frozen=True, kw_only=True):
    """A copy of the run in an object store, kept while it works."""

    url: Annotated[str, PLACE, Meta(min_length=1)]
    seconds: Annotated[Seconds, THROUGHPUT] = 5.0
    wait: Annotated[bool, THROUGHPUT] = False
    exclusive: Annotated[bool, THROUGHPUT] = True

    def __post_init__(self) -> None:
        if holds_credentials(self.url):
            raise ValueError(NO_CREDENTIALS)


@classified
class Spec(_Part, frozen=True, kw_only=True):
    """One evaluation."""

    experiment: Annotated[Name, PLACE] = "default"
    description: Annotated[str, THROUGHPUT] = ""
    tags: Annotated[list[str], THROUGHPUT] = field(default_factory=list)
    seed: Annotated[int, RESULT] = 0
    limit: Annotated[Positive | None, RESULT] = None
    samples: Annotated[list[str] | None, RESULT] = None
    record_data: Annotated[bool, RESULT] = True
    models: Annotated[list[Model], NESTED, Meta(min_length=1)]
    roles: Annotated[dict[str, Model], NESTED] = field(default_factory=dict)
    tasks: Annotated[list[Task], NESTED, Meta(min_length=1)]
    limits: Annotated[Limits, NESTED] = Limits()
    mirror: Annotated[Mirror | None, NESTED] = None
    concurrency: Annotated[Concurrency, NESTED] = Concurrency()
    stall_seconds: Annotated[Seconds, THROUGHPUT] = 30.0
    on_stall: Annotated[str, THROUGHPUT, Meta(pattern="^(warn|cancel-sample)$")] = "warn"
    grace_seconds: Annotated[float, THROUGHPUT, Meta(ge=0)] = 10.0
    fail_on_error: Annotated[float, THROUGHPUT, Meta(ge=0)] = 0.0
    fail_on_error_in_cell: Annotated[Annotated[float, Meta(ge=0)] | None, THROUGHPUT] = None
    progress_file: Annotated[str, PLACE] = ""
    anomalies: Annotated[bool, THROUGHPUT] = True
    anomalies_except: Annotated[list[str], THROUGHPUT] = field(default_factory=list)
