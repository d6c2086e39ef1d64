"""Forecasts what a fork will reuse, what it will request, and the cost, before the fork is made. Stores nothing.

For a key that the parent has, the forecast counts the recorded steps that are not reused; for a new key, the parent's
average. Dollars are counted only for models that have a price.
"""

from collections.abc import Sequence

import msgspec

from holdfast.engine.replay import Rehearsal
from holdfast.records.samples import Usage
from holdfast.solve import RecordedStep
from holdfast.spec import Model, Spec


class Forecast(msgspec.Struct, frozen=True):
    """What a fork will reuse and request, according to a rehearsal without requests."""

    keys: int
    reused: int
    """Recorded steps that the fork will request again and get from the parent."""
    complete: int
    """Keys that need no new request."""
    asks: int
    """Estimated new requests: what the parent needed beyond what is reused; for new keys, its average."""
    tokens: int
    dollars: float | None = None
    """Estimated cost of new requests to models that have a price; None if none has."""
    unpriced: int = 0
    """Keys that will send requests to a model without a price."""


class Mean(msgspec.Struct, frozen=True):
    """The mean steps and tokens of a finished key."""

    steps: float
    input_tokens: float
    output_tokens: float


class ForecastBuilder:
    """Adds up a forecast, key by key."""

    def __init__(self, spec: Spec, mean: Mean) -> None:
        self._mean = mean
        self._models = {model.name: model for model in spec.models}
        self._roles = spec.roles
        self._keys = self._complete = self._reused = self._unpriced = 0
        self._asks = self._tokens = self._dollars = 0.0

    def add(self, model: str, rehearsed: Rehearsal, recorded: Sequence[RecordedStep]) -> None:
        """Add a key: its model, what it would reuse, and its steps in the parent."""
        self._keys += 1
        self._reused += rehearsed.reused
        if not rehearsed.asks:
            self._complete += 1
            return
        if recorded:
            self._asks += max(len(recorded) - rehearsed.reused, 1)
            parts = _tokens_left(recorded, rehearsed.saved)
        else:
            self._asks += self._mean.steps
            parts = {"": (self._mean.input_tokens, self._mean.output_tokens)}
        self._tokens += sum(map(sum, parts.values()))
        models = {role: self._roles.get(role) if role else self._models[model] for role in parts}
        costs = [_dollars(models[role], *tokens) for role, tokens in parts.items()]
        self._unpriced += None in costs
        self._dollars += sum(filter(None, costs))

    def forecast(self) -> Forecast:
        priced = any(each.price is not None for each in (*self._models.values(), *self._roles.values()))
        return Forecast(
            self._keys,
            self._reused,
            self._complete,
            round(self._asks),
            round(self._tokens),
            self._dollars if priced else None,
            self._unpriced if priced else 0,
        )


def _tokens_left(recorded: Sequence[RecordedStep], saved: Usage) -> dict[str, tuple[float, float]]:
    """By role: recorded input and output tokens, without the share that is reused. The rehearsal does not count reuse
    by role, so every role gets the same share.
    """
    used: dict[str, Usage] = {}
    for each in recorded:
        if each.step.answer is not None:
            role = each.step.asked.role if each.step.asked is not None else ""
            used[role] = used.get(role, Usage()) + each.step.answer.usage
    total = sum(used.values(), Usage())
    left_in = _share(total.input_tokens - saved.input_tokens, total.input_tokens)
    left_out = _share(total.output_tokens - saved.output_tokens, total.output_tokens)
    return {role: (usage.input_tokens * left_in, usage.output_tokens * left_out) for role, usage in used.items()}


def _share(part: int, whole: int) -> float:
    return max(part, 0) / whole if whole else 0.0


def _dollars(model: Model | None, input_tokens: float, output_tokens: float) -> float | None:
    return None if model is None else model.dollars(Usage(round(input_tokens), round(output_tokens)))
