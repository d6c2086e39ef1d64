"""Every provider of Holdfast passes the contract that is shipped for everybody's, against its protocol's server."""

from typing import Any, ClassVar

from holdfast.testing.contract import ProviderContract


class TestChat(ProviderContract):
    provider = "openai"
    lacks = frozenset({"signatures"})


class TestChatStreaming(TestChat):
    settings: ClassVar[dict[str, Any]] = {"stream": True}


class TestResponses(ProviderContract):
    provider = "openai"
    settings: ClassVar[dict[str, Any]] = {"options": {"api": "responses"}}


class TestResponsesStreaming(ProviderContract):
    provider = "openai"
    settings: ClassVar[dict[str, Any]] = {"options": {"api": "responses"}, "stream": True}


class TestAnthropic(ProviderContract):
    provider = "anthropic"
    lacks = frozenset({"logprobs", "likelihood"})


class TestAnthropicStreaming(TestAnthropic):
    settings: ClassVar[dict[str, Any]] = {"stream": True}


class TestGoogle(ProviderContract):
    provider = "google"
    lacks = frozenset({"cache_writes", "likelihood"})


class TestGoogleStreaming(TestGoogle):
    settings: ClassVar[dict[str, Any]] = {"stream": True}
