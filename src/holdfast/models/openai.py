"""Any OpenAI-compatible chat endpoint."""

from typing import Any

from holdfast.models.completion import parse_completion, parse_models
from holdfast.models.endpoint import Endpoint, parse_url, read_key
from holdfast.models.failures import BadConnectionError, ModelError
from holdfast.models.provider import Connection, Request
from holdfast.records.exchange import Answer

DEFAULT_URL = "https://api.openai.com/v1"
DEFAULT_KEY_VARIABLE = "OPENAI_API_KEY"


class OpenAIProvider:
    """One model behind one URL. Belongs to the event loop that first asks; close it there."""

    def __init__(self, connection: Connection) -> None:
        self._model = connection.model
        self._base = base = parse_url(connection.base_url or DEFAULT_URL)
        if connection.options:
            named = ", ".join(connection.options)
            raise BadConnectionError(f"openai has no options; what a request should hold ({named}) belongs in `params`")
        key = read_key(connection, DEFAULT_KEY_VARIABLE)
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key.value}"} if key.value else {})
        url = (base / "chat" / "completions").with_query(base.query)
        self._endpoint = Endpoint(connection, url, key, headers)

    async def generate(self, request: Request) -> Answer:
        """Ask once. Raises ModelError, and nothing else but a cancellation."""
        response = await self._endpoint.post(chat_body(self._model, request))
        try:
            return parse_completion(response.body)
        except ModelError as error:
            self._endpoint.fail(error.kind, error.message, error.status)

    async def served(self, seconds: float) -> list[str] | None:
        """The names of the models that the server has, asked for once; None if it is there and does not list them.
        Raises ModelError if it is not there, or refuses the key.
        """
        response = await self._endpoint.look((self._base / "models").with_query(self._base.query), seconds)
        return parse_models(response.body) if response.status == 200 else None

    async def close(self) -> None:
        """Ends what is under way. Idempotent; a later request connects again."""
        await self._endpoint.close()


def chat_body(model: str, request: Request) -> dict[str, Any]:
    """What is sent for a request, alone or as a line of a job."""
    body: dict[str, Any] = {"model": model, "messages": request.messages, **request.params}
    if request.tools:
        body["tools"] = request.tools
    return body
