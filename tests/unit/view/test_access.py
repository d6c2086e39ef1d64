"""The token file, and comparisons in constant time."""

import hmac
import os
import threading
from pathlib import Path

import pytest
from aiohttp.test_utils import make_mocked_request

from holdfast.view.web import access
from holdfast.view.web.access import Access, user_token


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "holdfast" / "view-token"


def test_a_token_is_long_and_kept(path: Path) -> None:
    token = user_token()
    assert len(token) >= 32
    assert user_token() == token == path.read_text()
    assert [each.name for each in path.parent.iterdir()] == ["view-token"]


def test_servers_that_start_at_the_same_time_share_one_token(path: Path) -> None:
    found: list[str] = []
    begin = threading.Barrier(8)

    def start() -> None:
        begin.wait()
        found.append(user_token())

    threads = [threading.Thread(target=start) for _ in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert set(found) == {path.read_text()}
    assert [each.name for each in path.parent.iterdir()] == ["view-token"]


@pytest.mark.parametrize("content", ["", " \n"])
def test_an_empty_file_is_replaced(path: Path, content: str) -> None:
    path.parent.mkdir()
    path.write_text(content)
    path.chmod(0o600)
    assert user_token() == path.read_text() != ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_token_that_cannot_be_kept_lasts_as_long_as_the_server(path: Path) -> None:
    path.parent.parent.chmod(0o500)
    assert user_token() != user_token()


def test_tokens_are_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []
    compare = hmac.compare_digest

    def record(given: bytes, secret: bytes) -> bool:
        compared.append((given, secret))
        return compare(given, secret)

    monkeypatch.setattr(hmac, "compare_digest", record)
    checks = Access("secret", 7707)
    checks.allows_write(make_mocked_request("POST", "/", {"Host": "h", "Origin": "http://h"}), "guess")
    assert compared == [(b"guess", checks.form_token.encode())]
    source = Path(access.__file__).read_text()
    assert "== self._token" not in source
    assert "== self.form_token" not in source


@pytest.mark.parametrize(
    ("origin", "is_own"),
    [
        ("http://localhost:7707", True),
        ("https://localhost:7707", True),  # behind a proxy of the user
        ("http://localhost:7708", False),
        ("http://localhost.elsewhere.example:7707", False),
        ("http://elsewhere.example", False),
        ("http://[", False),
        ("null", False),
        ("", False),
    ],
)
def test_a_write_must_come_from_a_page_of_this_server(origin: str, is_own: bool) -> None:
    checks = Access("secret", 7707)
    headers = {"Host": "localhost:7707", **({"Origin": origin} if origin else {})}
    request = make_mocked_request("POST", "/", headers)
    assert checks.allows_write(request, checks.form_token) is is_own
    assert not checks.allows_write(request, "")
    assert not checks.allows_write(request, "\ud800")


def test_a_single_use_token_works_once() -> None:
    checks = Access("secret", 7707)
    once = checks.single_use_token()
    assert once != "secret"
    assert checks._is_token(once)  # noqa: SLF001
    assert not checks._is_token(once)  # noqa: SLF001
    assert not checks._is_token("")  # noqa: SLF001
    assert checks._is_token("secret")  # noqa: SLF001
