"""A provider's name leads to a provider, or to a refusal that says what was meant."""

import asyncio
import importlib.metadata
import subprocess
import sys

import pytest

from holdfast.models import (
    BadConnectionError,
    Connection,
    JobMark,
    ModelError,
    Request,
    UnknownProviderError,
    make_provider,
    open_batches,
)
from holdfast.models.providers.registry import load_factory
from holdfast.records.samples import Answer
from holdfast.spec.providers import PROVIDERS

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


@pytest.mark.parametrize("function", ["shout", "make_named"])
def test_an_installed_package_offers_a_provider(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install("theirs", f"{OWN}:{function}", monkeypatch)
    assert ask_once("theirs").text == {"shout": "HELLO", "make_named": "m1"}[function]
    known = "anthropic, google, litellm, mock, openai, theirs"
    with pytest.raises(UnknownProviderError, match=r"provider 'thiers' is not known; did you mean 'theirs'\?$"):
        make_provider(Connection("thiers", "m"))
    with pytest.raises(UnknownProviderError, match=rf"provider 'x' is not known; use {known} or module:function$"):
        make_provider(Connection("x", "m"))
    assert asyncio.run(open_batches(Connection("theirs", "m1")).find(JobMark("token", 1, 0.0))).id == ""


@pytest.mark.parametrize("name", ["openai", "mock", "groq", "vllm"])
def test_an_installed_package_cannot_take_over_a_name_of_the_table(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(name, f"{OWN}:make_nothing", monkeypatch)
    if PROVIDERS[name].factory:
        assert type(make_provider(Connection(name, "m"))).__module__.startswith("holdfast.models.")
    else:
        with pytest.raises(UnknownProviderError):
            make_provider(Connection(name, "m"))


def test_an_installed_provider_that_cannot_be_imported_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    install("theirs", "no_such_module:make", monkeypatch)
    with pytest.raises(UnknownProviderError, match="no_such_module"):
        make_provider(Connection("theirs", "m"))


def test_every_factory_of_the_table_can_be_imported() -> None:
    for name, info in PROVIDERS.items():
        for factory in filter(None, (info.factory, info.batch_factory)):
            assert callable(load_factory(factory)), name
        assert bool(info.factory) != bool(info.speaks), name


def install(name: str, reference: str, monkeypatch: pytest.MonkeyPatch) -> None:
    point = importlib.metadata.EntryPoint(name, reference, "holdfast.providers")
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point] if group == point.group else [])


def test_importing_the_package_imports_no_http_client() -> None:
    program = "import sys, holdfast.models, holdfast.testing; print('aiohttp' in sys.modules)"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert printed.stdout == "False\n"
