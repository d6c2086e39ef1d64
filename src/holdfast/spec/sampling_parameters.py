"""Sampling parameters: the names that servers know, and the type and range of the common ones. Pure.

`params:` of a model is sent to its server as it is, so a mistake in it costs a failed request for each sample. A known
parameter with an impossible value is refused before anything is sent. Ranges are those of the most permissive server:
vLLM accepts `top_k: -1`, and some servers a temperature above 2. `null` is always valid: it means the server's default.
An unknown parameter is sent, with a warning.
"""

import difflib
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

PER_KEY = "per_key"
"""As the parameter `seed`: each key sends its own seed, so that repeats differ and can be reproduced."""
_SIMILARITY_MIN = 0.85
"""Similarity cutoff for did-you-mean."""
_SHOWN_CHARACTERS = 60
_canonical = msgspec.json.Encoder(order="sorted").encode


class Rule(msgspec.Struct, frozen=True):
    """What a parameter's value must be: a description, and a test."""

    expected: str
    accepts: Callable[[Any], bool]


def _number(low: float | None = None, high: float | None = None, kinds: tuple[type, ...] = (int, float)) -> Rule:
    noun = "a whole number" if kinds == (int,) else "a number"
    if low is not None and high is not None:
        noun += f" from {low} to {high}"
    elif low is not None:
        noun += f" of at least {low}"

    def accepts(value: Any) -> bool:
        """`type() in` because a bool is an int in Python."""
        return type(value) in kinds and (low is None or value >= low) and (high is None or value <= high)

    return Rule(noun, accepts)


def _whole(low: int | None = None) -> Rule:
    return _number(low, None, (int,))


def _either(first: Rule, second: Rule) -> Rule:
    return Rule(f"{first.expected} or {second.expected}", lambda value: first.accepts(value) or second.accepts(value))


def _list(of: Rule, noun: str) -> Rule:
    return Rule(noun, lambda value: isinstance(value, list) and all(map(of.accepts, value)))


_FLAG = Rule("true or false", lambda value: isinstance(value, bool))
_TEXT = Rule("a text", lambda value: isinstance(value, str))
_TEXTS = _either(_TEXT, _list(_TEXT, "a list of texts"))
_MAPPING = Rule("a mapping", lambda value: isinstance(value, dict))
_PART = _number(0, 1)
_COUNT = _whole(1)

RULES: Mapping[str, Rule] = {
    "best_of": _COUNT,
    "chat_template_kwargs": _MAPPING,
    "extra_body": _MAPPING,
    "frequency_penalty": _number(-2, 2),
    "generationConfig": _MAPPING,
    "ignore_eos": _FLAG,
    "length_penalty": _number(),
    "logit_bias": _MAPPING,
    "logprobs": _either(_FLAG, _whole(-1)),
    "max_completion_tokens": _COUNT,
    "max_new_tokens": _COUNT,
    "max_output_tokens": _COUNT,
    "max_tokens": _COUNT,
    "min_p": _PART,
    "min_tokens": _whole(0),
    "n": _COUNT,
    "parallel_tool_calls": _FLAG,
    "presence_penalty": _number(-2, 2),
    "repetition_penalty": _number(0),
    "seed": _either(_whole(), Rule(PER_KEY, lambda value: value == PER_KEY)),
    "skip_special_tokens": _FLAG,
    "stop": _TEXTS,
    "stop_sequences": _TEXTS,
    "stop_token_ids": _list(_whole(), "a list of whole numbers"),
    "stream": _FLAG,
    "stream_options": _MAPPING,
    "temperature": _number(0),
    "top_k": _whole(-1),
    "top_logprobs": _whole(-1),
    "top_p": _PART,
    "typical_p": _PART,
}
"""Parameters with a type and a range."""

_OTHERS = """
add_generation_prompt add_special_tokens allowed_token_ids audio background bad_words cachedContent cache_control
cache_prompt cache_salt chat_template container context_management continue_final_message conversation custom_params
detokenize documents dry_allowed_length dry_base dry_multiplier dry_penalty_last_n dynatemp_exponent dynatemp_range
early_stopping ebnf echo enable_search enable_thinking format function_call functions grammar guided_choice
guided_decoding_backend guided_grammar guided_json guided_regex guided_whitespace_pattern id_slot include
include_reasoning include_stop_str_in_output instructions json_schema keep_alive kv_transfer_params labels lora_path
max_tool_calls mcp_servers metadata mirostat mirostat_eta mirostat_tau mm_processor_kwargs modalities models
n_predict n_probs no_stop_trim num_ctx num_predict options output_config plugins prediction previous_response_id
priority prompt prompt_cache_key prompt_cache_retention prompt_logprobs prompt_mode provider random_seed reasoning
reasoning_effort reasoning_format regex repeat_last_n repeat_penalty response_format return_tokens_as_token_ids route
safe_prompt safety_identifier safety_settings safetySettings samplers search_parameters separate_reasoning
service_tier spaces_between_special_tokens speed stop_regex store stream_reasoning structured_outputs suffix system
systemInstruction text tfs_z think thinking thinking_budget toolConfig tool_choice tools top_a transforms
truncate_prompt_tokens truncation typical usage use_beam_search user verbosity vllm_xargs web_search_options
xtc_probability xtc_threshold
"""
KNOWN = frozenset(RULES) | frozenset(_OTHERS.split())
"""Parameters of the common servers. Those without a rule differ too much between servers to be checked here."""


def wrong_params(params: Mapping[str, Any], unchanged: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each known parameter with an impossible value, except values that are `unchanged`."""
    for name, value in params.items():
        rule = RULES.get(name)
        if rule is None or value is None:
            continue
        # Compared as JSON: Python calls 1 and true equal.
        if name in unchanged and _canonical(unchanged[name]) == _canonical(value):
            continue
        if isinstance(value, str) and value.startswith("${") and value.endswith("}"):
            continue  # a variable: what it holds is only known when a request is made
        if not rule.accepts(value):
            text = msgspec.json.encode(value).decode()
            shown = text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"
            yield f"params.{name}: expected {rule.expected}, got {shown}{_hint(rule, value)}"


def unknown_params(params: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each parameter that no common server knows."""
    for name in params:
        if name not in KNOWN:
            plain = name.lower().replace("-", "_")
            near = difflib.get_close_matches(plain, sorted(KNOWN), n=1, cutoff=_SIMILARITY_MIN)
            hint = f"did you mean {near[0]!r}?" if near else "check its name in the documentation of the server"
            yield f"params: {name!r} is not a known parameter and is sent unchanged; {hint}"


def has_infinite_number(value: Any) -> bool:
    """Whether there is an infinity or a NaN in it: JSON has neither, and would silently store null."""
    if isinstance(value, dict | list):
        return any(map(has_infinite_number, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and not math.isfinite(value)


def _hint(rule: Rule, value: Any) -> str:
    """What to write instead, for a number of the wrong type: `"0.5"`, or 1e3 where a whole number is expected."""
    try:
        number = float(value) if isinstance(value, str | float) else math.nan
    except ValueError:
        return ""
    candidates: list[int | float] = [int(number), number] if math.isfinite(number) and number.is_integer() else [number]
    return next((f"; write {each}" for each in candidates if rule.accepts(each)), "")
