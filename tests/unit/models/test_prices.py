"""Listed prices: of the server that is asked, as the list has them, and none where it has none."""

import sys

import pytest

from holdfast.models.prices import find_rates, is_installed

pytest.importorskip("genai_prices")


def test_a_model_of_a_known_server_has_a_price_with_its_source() -> None:
    found = find_rates("openai", "gpt-4o", "")
    assert found is not None
    assert (found.input, found.output, found.cached_input) == (2.5, 10.0, 1.25)
    assert found.source.startswith("genai-prices ")


def test_of_a_price_in_tiers_the_first_is_taken_and_that_is_said() -> None:
    found = find_rates("anthropic", "claude-sonnet-4-5", "")
    assert found is not None
    assert (found.input, found.cache_write) == (3.0, 3.75)
    assert found.source.endswith("of requests up to 200000 tokens")


def test_a_server_is_known_by_its_address() -> None:
    found = find_rates("openai", "openai/gpt-4o", "https://openrouter.ai/api/v1")
    assert found is not None
    assert found.input == 2.5


def test_a_price_of_a_request_is_for_one() -> None:
    found = find_rates("openai", "sonar", "https://api.perplexity.ai")
    assert found is not None
    assert found.request == 0.012


@pytest.mark.parametrize(
    ("provider", "model", "base_url"),
    [
        ("openai", "gpt-4o", "http://127.0.0.1:8000/v1"),
        ("openai", "gpt-4o", "http://[::1]:8000/v1"),
        ("openai", "gpt-4o", "http://gpu7:8000/v1"),
        ("openai", "gpt-4o", "http://[no"),
        ("openai", "gpt-4o", "https://llm.example.org/v1"),
        ("openai", "no-such-model", ""),
        ("openai", "", ""),
        ("mock", "gpt-4o", ""),
        ("my.module:ask", "gpt-4o", ""),
    ],
)
def test_what_the_list_does_not_know_has_no_price(provider: str, model: str, base_url: str) -> None:
    assert find_rates(provider, model, base_url) is None


def test_without_the_package_there_is_no_price_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_installed()
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert find_rates("openai", "gpt-4o", "") is None
