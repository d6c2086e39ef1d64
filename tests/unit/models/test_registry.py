"""A provider's name leads to a provider, or to a refusal that says what was meant."""

import asyncio
import subprocess
import sys

import pytest

from holdfast.models import BadConnectionError, Connection, ModelError, Request, UnknownProviderError, make_provider
from holdfast.records.samples import Answer

OWN = "tests.unit.models.own_providers"
REQUEST = Request([{"role": "user", "content": "hello"}])


def ask_once(name: str) -> Answer:
    async def run() -> Answer:
        provider = make_provider(Connection(name, "m1"))
        try:
            return await provider.generate(REQUEST)
        finally:
            await provider.close()

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("mock", "hello"),
        (f"{OWN}:shout", "HELLO"),
        (f"{OWN}:whole", "whole"),
        (f"{OWN}:make_named", "m1"),
        (f"{OWN}:Named", "m1"),
    ],
)
def test_built_in_and_own_providers_answer(name: str, text: str) -> None:
    assert ask_once(name).text == text


def test_a_string_becomes_a_whole_answer() -> None:
    assert ask_once(f"{OWN}:shout") == Answer("HELLO", {"role": "assistant", "content": "HELLO"}, [], "stop")


@pytest.mark.parametrize(("name", "kind"), [("late", "timeout"), ("cut_off", "connection"), ("nothing", "malformed")])
def test_what_goes_wrong_in_an_own_function_has_a_kind(name: str, kind: str) -> None:
    with pytest.raises(ModelError, match=name) as raised:
        ask_once(f"{OWN}:{name}")
    assert raised.value.kind == kind


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("opnai", "did you mean 'openai'"),
        ("Mock", "did you mean 'mock'"),
        ("vllm", "`vllm serve MODEL`, then use provider: openai with its base_url, or the short name vllm/MODEL"),
        ("zzz", "use anthropic, google, litellm, mock, openai or module:function"),
        ("", "use anthropic, google, litellm, mock, openai or module:function"),
        (f"{OWN}:shuot", "did you mean 'shout'"),
        (f"{OWN}:WORD", "no function 'WORD'"),
        ("no_such_module:f", "no_such_module"),
        (":f", "cannot be imported"),
    ],
)
def test_an_unknown_provider_is_refused_with_the_nearest_name(name: str, said: str) -> None:
    with pytest.raises(UnknownProviderError, match=said):
        make_provider(Connection(name, "m"))


def test_a_function_that_makes_no_provider_is_refused() -> None:
    with pytest.raises(BadConnectionError, match="no async generate"):
        make_provider(Connection(f"{OWN}:make_nothing", "m"))


def test_importing_the_room_imports_no_http_client() -> None:
    program = "import sys, holdfast.models, holdfast.testing; print('aiohttp' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert printed.stdout == "False\n"
