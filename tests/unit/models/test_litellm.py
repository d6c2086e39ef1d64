"""The litellm provider: the contract where LiteLLM is installed, and everywhere a module of the same shape.

LiteLLM pins another version of the openai package than the one that other tests need, so it is not among what is
installed for development; the contract was passed with LiteLLM 1.106.2 in an environment of its own.
"""

import asyncio
import importlib.util
import json
from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest

from holdfast.models import BadConnectionError, Connection, ModelError, Request, make_provider
from holdfast.records.samples import COUNT_MAX, Answer, Usage
from holdfast.testing.contract import ProviderContract
from tests.absurd import absurd_documents
from tests.unit.models.lent_modules import lent

KEY = "sk-secret-1234567890"
IS_HERE = importlib.util.find_spec("litellm") is not None
INIT = """
from . import exceptions

asked = []
answers = []

class Response:
    def __init__(self, body):
        self.body = body

    def model_dump(self, exclude_none):
        assert exclude_none
        return self.body

async def acompletion(**given):
    asked.append(given)
    answer = answers.pop(0)
    if isinstance(answer, Exception):
        raise answer
    return Response(answer)
"""
EXCEPTIONS = """
class openai:
    class OpenAIError(Exception):
        pass

class APIError(openai.OpenAIError):
    def __init__(self, text, status_code=None, headers=None):
        super().__init__(text)
        self.status_code = status_code
        self.litellm_response_headers = headers

class Timeout(APIError): pass
class APIConnectionError(APIError): pass
class ContextWindowExceededError(APIError): pass
class ContentPolicyViolationError(APIError): pass
class ServiceUnavailableError(APIError): pass
class JSONDecodeError(Exception): pass
"""
BODY = {
    "choices": [{"message": {"role": "assistant", "content": "42"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 3, "completion_tokens": 1},
}
SUM = Request([{"role": "user", "content": "12 + 30"}], {"temperature": 0}, [{"type": "function"}])


if IS_HERE:

    class TestLitellm(ProviderContract):
        provider = "litellm"
        lacks = frozenset({"signatures", "likelihood"})
        settings: ClassVar[dict[str, Any]] = {"model": "openai/m"}
        kinds: ClassVar[dict[str, tuple[str, int | None]]] = {"html": ("server", 500)}


@pytest.fixture
def litellm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    with lent("litellm", {"__init__.py": INIT, "exceptions.py": EXCEPTIONS}, tmp_path, monkeypatch):
        yield importlib.import_module("litellm")


def ask(**settings: Any) -> Answer:
    provider = make_provider(Connection("litellm", "bedrock/x", **settings))
    return asyncio.run(provider.generate(SUM))


@pytest.mark.skipif(IS_HERE, reason="litellm is installed")
def test_without_the_package_it_says_how_to_install_it() -> None:
    with pytest.raises(BadConnectionError, match=r"pip install 'holdfast\[litellm\]'"):
        make_provider(Connection("litellm", "bedrock/x"))


def test_it_sends_one_request_without_retries_and_passes_its_arguments_on(litellm: Any) -> None:
    litellm.answers.append(BODY)
    answer = ask(timeout_seconds=9, base_url="http://host", headers={"X-A": "b"}, options={"drop_params": True})
    assert (answer.text, answer.usage, answer.raw) == ("42", Usage(3, 1), None)
    assert litellm.asked == [
        {
            "model": "bedrock/x",
            "messages": SUM.messages,
            "temperature": 0,
            "tools": SUM.tools,
            "drop_params": True,
            "num_retries": 0,
            "max_retries": 0,
            "timeout": 9,
            "api_base": "http://host",
            "extra_headers": {"X-A": "b"},
        }
    ]
    assert litellm.suppress_debug_info


def test_the_raw_answer_is_kept_on_request(litellm: Any) -> None:
    litellm.answers.append(BODY)
    assert ask(record_raw=True).raw == BODY


@pytest.mark.parametrize(
    ("name", "status", "kind", "told"),
    [
        ("Timeout", 408, "timeout", None),
        ("APIConnectionError", 500, "connection", None),
        ("ContextWindowExceededError", 400, "context_too_long", 400),
        ("ContentPolicyViolationError", 400, "content_filter", 400),
        ("ServiceUnavailableError", 503, "overload", 503),
        ("APIError", 401, "auth", 401),
        ("APIError", 404, "unknown_model", 404),
        ("APIError", 500, "server", 500),
        ("APIError", None, "server", None),
    ],
)
def test_its_exceptions_have_our_kinds(litellm: Any, name: str, status: int, kind: str, told: int | None) -> None:
    litellm.answers.append(getattr(litellm.exceptions, name)("no", status))
    with pytest.raises(ModelError) as raised:
        ask()
    assert (raised.value.kind, raised.value.status) == (kind, told)


def test_the_cause_of_an_exception_counts(litellm: Any) -> None:
    error = litellm.exceptions.APIError("Expecting value", 500)
    error.__cause__ = litellm.exceptions.JSONDecodeError()
    litellm.answers.append(error)
    with pytest.raises(ModelError) as raised:
        ask()
    assert raised.value.kind == "malformed"


def test_a_rate_limit_says_how_long(litellm: Any) -> None:
    litellm.answers.append(litellm.exceptions.APIError("slow down", 429, {"Retry-After": "7"}))
    with pytest.raises(ModelError) as raised:
        ask()
    assert (raised.value.kind, raised.value.retry_after) == ("rate_limit", 7.0)


def test_no_key_that_it_may_have_found_is_in_an_error(litellm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_PROVIDER_API_KEY", KEY)
    litellm.answers.append(litellm.exceptions.APIError(f"wrong key {KEY}", 401))
    with pytest.raises(ModelError, match=r"wrong key \[redacted\]") as raised:
        ask()
    assert KEY not in repr(raised.value)


def test_it_does_not_stream(litellm: Any) -> None:
    with pytest.raises(BadConnectionError, match="cannot stream"):
        make_provider(Connection("litellm", "bedrock/x", stream=True))


def test_whatever_it_returns_is_an_answer_or_a_failure(litellm: Any) -> None:
    """LiteLLM gives Python objects, in which numbers and texts can be what JSON cannot hold."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "42", "tool_calls": [call]}
    details = {"prompt_tokens_details": {"cached_tokens": 1}, "completion_tokens_details": {"reasoning_tokens": 1}}
    choice = {"message": message, "finish_reason": "stop", "index": 0, "logprobs": {"content": [{"logprob": -0.1}]}}
    body: dict[str, Any] = {
        "id": "x",
        "choices": [choice],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4, **details},
    }
    bodies = [json.loads(each, parse_int=_number) for each in absurd_documents(body)]
    strange: list[Any] = [float("nan"), 10**5000, "\ud800", object(), {1, 2}, {(1, 2): 3}, b"bytes", 2**70]
    bodies += [{**body, "usage": {"prompt_tokens": each}} for each in strange]
    bodies += [{**body, "choices": [{**choice, "message": {**message, "content": each}}]} for each in strange]
    bodies += [None, [], "text", each_in_itself()]
    litellm.answers.extend(bodies)
    provider = make_provider(Connection("litellm", "bedrock/x"))
    answers = failures = 0
    for _ in bodies:
        try:
            answer = asyncio.run(provider.generate(SUM))
        except ModelError:
            failures += 1
            continue
        msgspec.json.encode(answer)
        counts = [each for each in msgspec.structs.astuple(answer.usage) if isinstance(each, int)]
        assert all(0 <= count <= COUNT_MAX for count in counts)
        answers += 1
    assert answers > failures > 0


def _number(digits: str) -> int | float:
    return int(digits) if len(digits) < 1000 else 10 ** len(digits)


def each_in_itself() -> dict[str, Any]:
    body: dict[str, Any] = {"choices": []}
    body["choices"].append(body)
    return body
