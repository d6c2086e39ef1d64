"""Files at URLs: verified, resumed after a cut, and never kept with a wrong hash."""

import concurrent.futures
import contextvars
import hashlib
import http.server
import os
from pathlib import Path
from typing import Any

import pytest

from holdfast.datasets import download, ending_downloads, showing_progress
from holdfast.datasets.downloads import DownloadProgress
from holdfast.datasets.hub import progress_class
from holdfast.errors import DataError
from tests.servers import serve

CONTENT = b"".join(b'{"question": "%d + 1"}\n' % number for number in range(20_000))
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.datasets.downloads._PAUSE_SECONDS", 0.0)


class Served:
    """What the server does, and the requests it has seen."""

    def __init__(self, content: bytes = CONTENT) -> None:
        self.content = content
        self.cuts: list[int] = []
        self.statuses: list[int] = []
        self.ranges: list[str] = []
        self.knows_ranges = True
        this = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                this.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self.handler = Handler

    def answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        self.ranges.append(request.headers.get("Range", ""))
        if self.statuses:
            request.send_error(self.statuses.pop(0))
            return
        asked = request.headers.get("Range", "") if self.knows_ranges else ""
        start = int(asked.removeprefix("bytes=").removesuffix("-")) if asked else 0
        if start >= len(self.content):
            request.send_error(416)
            return
        rest = self.content[start:]
        request.send_response(206 if start else 200)
        request.send_header("Content-Length", str(len(rest)))
        request.end_headers()
        request.wfile.write(rest[: self.cuts.pop(0)] if self.cuts else rest)


def fetch(served: Served, folder: Path, name: str = "rows.jsonl", sha256: str = SHA256) -> str:
    with serve(served.handler) as address:
        return download(f"http://{address}/data/{name}?x=1", sha256, str(folder))


def test_a_file_is_downloaded_once_and_keeps_the_ending_of_its_name(tmp_path: Path) -> None:
    served = Served()
    path = fetch(served, tmp_path)
    assert path == str(tmp_path / f"{SHA256}.jsonl")
    assert Path(path).read_bytes() == CONTENT
    assert fetch(served, tmp_path, sha256=SHA256.upper()) == path
    assert len(served.ranges) == 1
    assert os.listdir(tmp_path) == [f"{SHA256}.jsonl"]
    assert fetch(served, tmp_path, "rows.jsonl.gz") == str(tmp_path / f"{SHA256}.jsonl.gz")


def test_a_cut_download_continues_where_it_broke(tmp_path: Path) -> None:
    served = Served()
    served.cuts = [1000, 5000]
    assert Path(fetch(served, tmp_path)).read_bytes() == CONTENT
    assert served.ranges == ["", "bytes=1000-", "bytes=6000-"]


def test_a_download_of_a_killed_process_is_continued(tmp_path: Path) -> None:
    (tmp_path / f"{SHA256}.jsonl.part").write_bytes(CONTENT[:777])
    served = Served()
    assert Path(fetch(served, tmp_path)).read_bytes() == CONTENT
    assert served.ranges == ["bytes=777-"]


def test_a_complete_part_needs_no_content(tmp_path: Path) -> None:
    (tmp_path / f"{SHA256}.jsonl.part").write_bytes(CONTENT)
    assert Path(fetch(Served(), tmp_path)).read_bytes() == CONTENT


def test_a_server_without_ranges_sends_the_whole_file_again(tmp_path: Path) -> None:
    served = Served()
    served.cuts, served.knows_ranges = [1000], False
    assert Path(fetch(served, tmp_path)).read_bytes() == CONTENT


def test_the_part_of_an_earlier_version_is_replaced(tmp_path: Path) -> None:
    (tmp_path / f"{SHA256}.jsonl.part").write_bytes(b"x" * 500)
    served = Served()
    assert Path(fetch(served, tmp_path)).read_bytes() == CONTENT
    assert served.ranges == ["bytes=500-", ""]


def test_a_wrong_hash_is_one_error_and_nothing_is_kept(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"its SHA-256 is {SHA256}, not {'0' * 64}; nothing was kept"):
        fetch(Served(), tmp_path, sha256="0" * 64)
    assert os.listdir(tmp_path) == []


def test_a_download_that_never_gets_further_keeps_its_part(tmp_path: Path) -> None:
    served = Served()
    served.cuts = [100, *[0] * 50]
    with pytest.raises(DataError, match=r"cut off again and again .*; run the command again: it continues"):
        fetch(served, tmp_path)
    assert (tmp_path / f"{SHA256}.jsonl.part").read_bytes() == CONTENT[:100]


def test_a_busy_server_is_asked_again_and_a_refusal_is_not(tmp_path: Path) -> None:
    served = Served()
    served.statuses = [429, 503]
    assert Path(fetch(served, tmp_path)).read_bytes() == CONTENT
    served.statuses = [404]
    with pytest.raises(DataError, match="the server answers 404 Not Found; check the address"):
        fetch(served, tmp_path / "..", "other.csv")


def test_a_server_that_is_not_there_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"cannot be reached|cut off again and again"):
        download("http://127.0.0.1:9/x.jsonl", SHA256, str(tmp_path))


def test_progress_is_a_plain_line_after_two_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    now = [0.0]
    progress = DownloadProgress("rows.jsonl", 10_000_000, clock=lambda: now[0])
    progress.add(1_000_000)
    assert capsys.readouterr().err == ""
    now[0] = 2.5
    progress.add(1_000_000)
    progress.add(1_000_000)
    assert capsys.readouterr().err == "downloading rows.jsonl: 2.0 of 10.0 MB\n"
    now[0] = 8.0
    progress.add(7_000_000)
    progress.end()
    assert capsys.readouterr().err == "downloading rows.jsonl: 10.0 of 10.0 MB\n"


def test_a_command_with_a_live_line_shows_progress_there(capsys: pytest.CaptureFixture[str]) -> None:
    shown: list[str] = []
    now = [0.0]
    with showing_progress(shown.append):
        progress = DownloadProgress("rows.jsonl", clock=lambda: now[0])
        now[0] = 3.0
        progress.add(1_500_000)
        progress.end()
    assert shown == ["downloading rows.jsonl: 1.5 MB", ""]
    assert capsys.readouterr().err == ""


def test_a_download_in_a_thread_ends_with_the_block(tmp_path: Path) -> None:
    served = Served()
    with serve(served.handler) as address, concurrent.futures.ThreadPoolExecutor(1) as pool:
        with ending_downloads():
            context = contextvars.copy_context()
        failed = pool.submit(context.run, download, f"http://{address}/rows.jsonl", SHA256, str(tmp_path))
        with pytest.raises(DataError, match="the download was interrupted; run the command again"):
            failed.result()
    assert os.listdir(tmp_path) == [f"{SHA256}.jsonl.part"]
    assert Path(fetch(served, tmp_path)).read_bytes() == CONTENT


def test_downloads_of_the_hub_are_shown_in_the_same_way(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("holdfast.datasets.downloads.SECONDS_UNSHOWN", 0.0)
    shown: list[str] = []
    with showing_progress(shown.append), progress_class()(desc="test.parquet", total=4_000_000, initial=0) as bar:
        bar.update_transfer(2_000_000)  # bytes on the way have no line of their own
        bar.set_transfer_postfix_str("1 MB/s", refresh=False)
        bar.update(1_000_000)
        bar.set_postfix_str("1 MB/s", refresh=False)
    assert shown == ["downloading test.parquet: 1.0 of 4.0 MB", ""]


def test_two_processes_download_a_file_once(tmp_path: Path) -> None:
    served = Served()
    with serve(served.handler) as address, concurrent.futures.ThreadPoolExecutor(4) as pool:
        url = f"http://{address}/rows.jsonl"
        paths = set(pool.map(lambda _: download(url, SHA256, str(tmp_path)), range(4)))
        assert paths == {str(tmp_path / f"{SHA256}.jsonl")}
        assert os.listdir(tmp_path) == [f"{SHA256}.jsonl"]
        assert len(served.ranges) == 1
        for failed in pool.map(lambda _: _error_of(url, tmp_path), range(4)):
            assert "nothing was kept" in failed
    assert os.listdir(tmp_path) == [f"{SHA256}.jsonl"]


def _error_of(url: str, folder: Path) -> str:
    with pytest.raises(DataError) as caught:
        download(url, "0" * 64, str(folder))
    return str(caught.value)
