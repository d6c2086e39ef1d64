"""The vllm provider against a small module of the same shape: vLLM itself needs a GPU and gigabytes.

So this shows that what vLLM documents is used as documented, not that a given version of it works.
"""

import asyncio
import importlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from holdfast.models import BadConnectionError, Connection, ModelError, Request, make_provider
from holdfast.records.exchange import COUNT_MAX, Answer, Usage
from tests.unit.models.lent_modules import lent

FILES = {
    "__init__.py": "from .sampling_params import SamplingParams\n",
    "sampling_params.py": """
import enum
from dataclasses import dataclass
from typing import Any

class RequestOutputKind(enum.Enum):
    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2

@dataclass
class StructuredOutputsParams:
    json: Any = None
    json_object: Any = None

@dataclass
class SamplingParams:
    temperature: float = 1.0
    max_tokens: int | None = 16
    top_p: float = 1.0
    seed: int | None = None
    stop: Any = None
    logprobs: int | None = None
    structured_outputs: Any = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
""",
    "engine/arg_utils.py": """
class AsyncEngineArgs:
    def __init__(self, model, revision=None, tensor_parallel_size=1):
        self.model, self.revision, self.tensor_parallel_size = model, revision, tensor_parallel_size
""",
    "v1/engine/exceptions.py": """
class EngineDeadError(Exception): pass
class EngineGenerateError(Exception): pass
""",
    "v1/engine/async_llm.py": """
import asyncio
from types import SimpleNamespace
from .exceptions import EngineDeadError

made = []
changes = []

class Tokenizer:
    def apply_chat_template(self, messages, add_generation_prompt, tokenize, return_dict, **more):
        assert add_generation_prompt and tokenize and not return_dict
        return [ord(c) for c in messages[-1]["content"]]

class AsyncLLM:
    @classmethod
    def from_engine_args(cls, args):
        if args.model == "missing":
            raise OSError("missing is not a local folder")
        engine = cls()
        engine.args, engine.aborted, engine.closed, engine.sampling = args, [], 0, []
        made.append(engine)
        return engine

    async def get_tokenizer(self):
        return Tokenizer()

    async def generate(self, prompt, sampling_params, request_id):
        self.sampling.append(sampling_params)
        text = "".join(map(chr, prompt["prompt_token_ids"]))
        try:
            if text == "hang":
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.aborted.append(request_id)
            raise
        if text == "die":
            raise EngineDeadError("the engine is dead")
        if text == "long":
            raise ValueError("The decoder prompt is longer than the maximum model length of 4")
        reason = {"cut": "length", "abort": "abort"}.get(text, "stop")
        one = {7: SimpleNamespace(logprob=-0.5, rank=1, decoded_token="4"),
               8: SimpleNamespace(logprob=-1.5, rank=2, decoded_token="5")}
        said = SimpleNamespace(text=text.upper(), token_ids=[7], finish_reason=reason, stop_reason=None,
                               logprobs=[one] if sampling_params.logprobs is not None else None)
        output = SimpleNamespace(prompt_token_ids=prompt["prompt_token_ids"], outputs=[said], finished=True,
                                 num_cached_tokens=2)
        for holder, name, value in changes:
            setattr(said if holder == "said" else output, name, value)
        yield output

    def shutdown(self):
        self.closed += 1
""",
}


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    with lent("vllm", FILES, tmp_path, monkeypatch):
        yield importlib.import_module("vllm.v1.engine.async_llm").made


def ask(text: str, params: dict[str, Any] | None = None, **settings: Any) -> Answer:
    async def run() -> Answer:
        provider = make_provider(Connection("vllm", settings.pop("model", "org/m"), **settings))
        try:
            return await provider.generate(Request([{"role": "user", "content": text}], params or {}))
        finally:
            await provider.close()
            await provider.close()

    return asyncio.run(run())


def failure(text: str, **settings: Any) -> ModelError:
    with pytest.raises(ModelError) as raised:
        ask(text, **settings)
    return raised.value


def test_without_the_package_it_says_how_to_install_it() -> None:
    with pytest.raises(BadConnectionError, match=r"pip install 'holdfast\[vllm\]'"):
        make_provider(Connection("vllm", "org/m"))


def test_an_answer_with_its_usage_from_an_engine_that_is_closed_once(engines: Any) -> None:
    answer = ask("hello", {"temperature": 0, "max_tokens": 5, "seed": 3, "stop": ["x"]})
    assert (answer.text, answer.finish_reason, answer.usage) == ("HELLO", "stop", Usage(5, 1, 2))
    (engine,) = engines
    sampling = engine.sampling[0]
    assert (sampling.temperature, sampling.max_tokens, sampling.seed, sampling.stop) == (0, 5, 3, ["x"])
    assert sampling.output_kind.name == "FINAL_ONLY"
    assert engine.closed == 1


def test_a_revision_and_the_engines_own_arguments_reach_it(engines: Any) -> None:
    ask("x", model="org/m@abc", options={"tensor_parallel_size": 2})
    args = engines[0].args
    assert (args.model, args.revision, args.tensor_parallel_size) == ("org/m", "abc", 2)


def test_all_that_ask_at_once_share_one_engine(engines: Any) -> None:
    async def run() -> list[str]:
        provider = make_provider(Connection("vllm", "org/m"))
        asked = [provider.generate(Request([{"role": "user", "content": text}])) for text in "abc"]
        answers = await asyncio.gather(*asked)
        await provider.close()
        return [answer.text for answer in answers]

    assert asyncio.run(run()) == ["A", "B", "C"]
    assert len(engines) == 1


def test_logprobs_and_a_schema(engines: Any) -> None:
    wanted = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}}
    answer = ask("x", {"logprobs": True, "top_logprobs": 2, "response_format": wanted})
    tops = [{"token": "4", "logprob": -0.5}, {"token": "5", "logprob": -1.5}]
    assert answer.logprobs == [{"token": "4", "logprob": -0.5, "top_logprobs": tops}]
    assert engines[0].sampling[0].structured_outputs.json == {"type": "object"}


@pytest.mark.parametrize(("text", "kind"), [("die", "server"), ("abort", "server"), ("long", "context_too_long")])
def test_failures_have_their_kinds(engines: Any, text: str, kind: str) -> None:
    assert failure(text).kind == kind


def test_an_end_for_want_of_tokens_is_told(engines: Any) -> None:
    assert ask("cut").finish_reason == "length"


def test_a_parameter_that_it_does_not_know_is_a_bad_request(engines: Any) -> None:
    with pytest.raises(ModelError, match="no_such") as raised:
        ask("x", {"no_such": 1})
    assert raised.value.kind == "bad_request"


def test_a_model_that_cannot_be_loaded_is_told(engines: Any) -> None:
    error = failure("x", model="missing")
    assert (error.kind, "not a local folder" in error.message) == ("bad_request", True)


def test_a_timeout_gives_the_request_up(engines: Any) -> None:
    assert failure("hang", timeout_seconds=0.1).kind == "timeout"
    assert engines[0].aborted == ["holdfast-1"]


def test_tools_and_images_are_refused_before_anything_is_loaded(engines: Any) -> None:
    image = [{"type": "image_url", "image_url": {"url": "https://x"}}]
    for request in (
        Request([{"role": "user", "content": "x"}], {}, [{"type": "function"}]),
        Request([{"role": "user", "content": image}]),
    ):
        with pytest.raises(ModelError, match="vllm serve") as raised:
            asyncio.run(make_provider(Connection("vllm", "m")).generate(request))
        assert raised.value.kind == "bad_request"
    assert engines == []


def test_a_base_url_is_refused(engines: Any) -> None:
    with pytest.raises(BadConnectionError, match="provider: openai"):
        make_provider(Connection("vllm", "m", base_url="http://127.0.0.1:8000/v1"))


STRANGE: list[Any] = [None, -1, 2**63, 2.5, float("nan"), 10**5000, "7", "\ud800", [], {}, [None], object(), b"x", True]
FIELDS = [("said", name) for name in ("text", "token_ids", "finish_reason", "stop_reason", "logprobs")]
FIELDS += [("output", name) for name in ("prompt_token_ids", "outputs", "finished", "num_cached_tokens")]


def test_whatever_it_returns_is_an_answer_or_a_failure(engines: Any) -> None:
    changes = importlib.import_module("vllm.v1.engine.async_llm").changes
    tops = [[{7: SimpleNamespace(logprob=each, decoded_token=each)}] for each in STRANGE]
    cases = [(*field, value) for field in FIELDS for value in STRANGE] + [("said", "logprobs", each) for each in tops]
    answers = failures = 0
    for case in cases:
        changes[:] = [case]
        try:
            answer = ask("x", {"logprobs": True}, record_raw=True)
        except ModelError:
            failures += 1
            continue
        msgspec.json.encode(answer)
        assert all(0 <= count <= COUNT_MAX for count in msgspec.structs.astuple(answer.usage) if type(count) is int)
        answers += 1
    assert answers > 20
    assert failures > 20
