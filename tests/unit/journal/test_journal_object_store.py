"""What a store says when it fails becomes one line that helps, without a secret."""

import pytest

from holdfast.journal.object_store import describe_store_error

NO_BUCKET = """Generic S3 error: Error performing GET http://h:1/nob?list-type=2 in 1ms - \
Server returned non-2xx status code: 404 Not Found: <?xml version="1.0" encoding="utf-8"?>
<Error><Code>NoSuchBucket</Code><Message>The specified bucket does not exist</Message><RequestId>r</RequestId></Error>

Debug source:
Generic { store: "S3" }"""
REFUSED = """Generic S3 error: Error performing GET http://127.0.0.1:9/bkt?prefix=x in 1ms - HTTP error: error

Debug source:
inner: Os { code: 111, kind: ConnectionRefused, message: "Connection refused" }"""
NO_CREDENTIALS = (
    "Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1ms - "
    "Server returned non-2xx status code: 403 Forbidden: denied"
)
UNKNOWN = """Generic GCS error: Error performing GET https://storage.example/b in 1ms - HTTP error: error

Debug source:
ConnectError("dns error", Custom { kind: Uncategorized })"""
PROXY = "Generic S3 error: PUT http://h/b - Server returned non-2xx status code: 403 Forbidden: token-123456 is bad"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (NO_BUCKET, "The specified bucket does not exist (NoSuchBucket)"),
        (REFUSED, "127.0.0.1:9 cannot be reached: Connection refused"),
        (UNKNOWN, "storage.example cannot be reached: its name is not known"),
        (PROXY, "403 Forbidden: [redacted] is bad"),
        ("Generic S3 error: something odd at http://h/b?sig=abc\nand more", "something odd at http://h/b"),
        ("", "ValueError"),
    ],
)
def test_the_most_useful_part_of_a_store_error_is_shown(text: str, told: str) -> None:
    assert describe_store_error(ValueError(text), {"AWS_SESSION_TOKEN": "token-123456", "HOME": "bad"}) == told


def test_without_credentials_the_error_names_where_to_set_them() -> None:
    told = describe_store_error(ValueError(NO_CREDENTIALS), {})
    assert told.startswith("no credentials were found; set them in the environment (AWS_ACCESS_KEY_ID")
    assert "169.254" not in told
