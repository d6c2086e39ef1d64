"""HTTP failures become kinds, texts and waits."""

import pytest

from holdfast.models.http.statuses import RETRY_AFTER_SECONDS_MAX, detail_of, kind_of, retry_after_seconds, shorten

NOON = 1704110400.0  # 2024-01-01 12:00:00 UTC


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (401, "", "auth"),
        (403, "", "auth"),
        (404, "", "unknown_model"),
        (408, "", "timeout"),
        (429, "maximum context length", "rate_limit"),
        (400, "", "bad_request"),
        (400, "This model's Maximum Context Length is 4096 tokens", "context_too_long"),
        (400, '{"error": {"code": "context_length_exceeded"}}', "context_too_long"),
        (422, "`inputs` tokens + `max_new_tokens` must be <= 4096", "context_too_long"),
        (400, '{"error": {"code": "content_filter"}}', "content_filter"),
        (400, "ResponsibleAIPolicyViolation", "content_filter"),
        (402, "", "billing"),
        (429, '{"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}}', "billing"),
        (429, "You exceeded your current quota, please check your plan and billing details", "rate_limit"),
        (429, '{"quotaId": "GenerateRequestsPerDayPerProjectPerModel-FreeTier"}', "billing"),
        (429, '{"quotaId": "GenerateContentInputTokensPerModelPerMinute-FreeTier"}', "rate_limit"),
        (429, "Rate limit exceeded: free-models-per-day.", "billing"),
        (403, "Key limit exceeded (total limit)", "billing"),
        (400, "Your credit balance is too low to access the Anthropic API", "billing"),
        (403, "Your team has used all available credits", "billing"),
        (400, "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000", "context_too_long"),
        (400, "This model's maximum prompt length is 131072", "context_too_long"),
        (429, "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 34000", "context_too_long"),
        (429, "Rate limit reached for gpt-4o on tokens per min (TPM): Limit 30000, Used 29000", "rate_limit"),
        (403, '{"error": {"metadata": {"reasons": ["violence"], "flagged_input": "x"}}}', "content_filter"),
        (400, "your prompt was flagged as potentially violating our usage policy", "content_filter"),
        (400, "Incorrect API key provided", "auth"),
        (422, "content filter", "bad_request"),
        (302, "", "bad_request"),
        (500, "", "server"),
        (502, "context length", "server"),
        (503, "", "overload"),
        (529, "", "overload"),
        (599, "", "server"),
    ],
)
def test_a_status_and_its_text_have_a_kind(status: int, body: str, kind: str) -> None:
    assert kind_of(status, body) == kind


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ('{"error": {"message": "too hot"}}', "too hot"),
        ('{"error": "too hot"}', "too hot"),
        ('{"error": {"code": 5}}', '{"code":5}'),
        ('{"message": "too hot"}', "too hot"),
        ('{"detail": [{"loc": "x"}]}', '[{"loc":"x"}]'),
        ("[1]", "[1]"),
        ('[{"error": {"message": "too hot"}}]', "too hot"),
        (
            '{"error": {"message": "Provider returned error", "metadata": {"raw": "boom"}}}',
            "Provider returned error: boom",
        ),
        ('{"error": {"message": "no", "metadata": {"raw": {"data": 1}}}}', 'no: {"data":1}'),
        (" plain text ", "plain text"),
        ("<html>a page</html>", "an HTML page"),
        ("", "an empty body"),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_what_the_server_said_is_found(body: str, detail: str) -> None:
    assert detail_of(body) == detail


def test_a_long_text_is_cut_visibly() -> None:
    assert shorten("x" * 5000) == "x" * 1000 + " [...]"
    assert shorten("x" * 1000) == "x" * 1000


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "3"}, 3.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"Retry-After": "-3"}, 0.0),
        ({"Retry-After": "nan"}, None),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "99999999"}, RETRY_AFTER_SECONDS_MAX),
        ({"Retry-After": "Mon, 01 Jan 2024 12:00:20 GMT"}, 20.0),
        ({"Retry-After": "Mon, 01 Jan 2024 11:00:00 GMT"}, 0.0),
        ({"Retry-After": "Mon, 01 Jan 2024 13:00:05 GMT", "Date": "Mon, 01 Jan 2024 13:00:00 GMT"}, 5.0),
        ({"Retry-After": "Mon, 01 Jan 2024 12:00:20 GMT", "Date": "nonsense"}, 20.0),
        ({"retry-after-ms": "250", "Retry-After": "9"}, 0.25),
    ],
)
def test_retry_after_is_seconds_or_a_date(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after_seconds(headers, NOON) == seconds
