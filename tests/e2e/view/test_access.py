"""Who may see the viewer, over plain HTTP: tokens, cookies, names of the server, and the start of the command."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.commands import call, environment, run, snapshot, write_spec
from tests.e2e.view.addresses import every_address
from tests.e2e.view.viewers import Viewer, stream

KEY = "sums/arith/s0001/1"
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-ancestors 'none'; form-action 'self'; base-uri 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("access")
    assert run("run", write_spec(made), "--id", "x", cwd=made).code == 0
    return made


@pytest.fixture(scope="module")
def viewer(folder: Path) -> Iterator[Viewer]:
    with Viewer("runs", cwd=folder) as made:
        yield made


@pytest.fixture(scope="module")
def addresses(folder: Path) -> list[str]:
    pages = list(every_address(folder / "runs", "sums", "x", KEY).values())
    return [
        *pages,
        *(f"/api{path}" for path in pages),
        "/api/runs",
        "/api/runs/sums/x/events",
        "/static/view.js",
        "/no",
    ]


def test_nothing_is_shown_without_the_token(viewer: Viewer, addresses: list[str]) -> None:
    port = viewer.port
    wrong: list[dict[str, str]] = [{"Authorization": "Bearer x"}, {"Authorization": "Bearer"}]
    for address in addresses:
        for headers in ({}, {"Cookie": f"holdfast_{port}=x"}, *wrong):
            reply = viewer.get(address, headers)
            assert (reply.status, "Set-Cookie" in reply.headers) == (401, False), (address, headers)
            assert viewer.token not in reply.text


def test_a_wrong_token_in_the_address_never_gets_the_right_one(viewer: Viewer) -> None:
    for given in ("x", "", viewer.token[:-1], f"{viewer.token}x", "%ff%fe"):
        reply = viewer.get(f"/?token={given}", {})
        assert reply.status == 401
        assert viewer.token not in f"{reply.headers}{reply.text}"


@pytest.mark.parametrize("prefix", ["Bearer", "bearer"])
def test_a_program_sends_the_token_in_a_header(viewer: Viewer, prefix: str) -> None:
    reply = viewer.get("/api/runs", {"Authorization": f"{prefix} {viewer.token}"})
    assert (reply.status, reply.json()["total"]) == (200, 1)
    assert "Set-Cookie" not in reply.headers


def test_bytes_that_are_no_text_are_a_wrong_token(viewer: Viewer) -> None:
    with socket.create_connection(("127.0.0.1", viewer.port)) as connection:
        host = f"Host: 127.0.0.1:{viewer.port}\r\n".encode()
        connection.sendall(
            b"GET / HTTP/1.1\r\n" + host + b"Authorization: Bearer \xff\xfe\r\nConnection: close\r\n\r\n"
        )
        assert connection.makefile("rb").read().startswith(b"HTTP/1.1 401 ")


def test_the_token_moves_from_the_address_into_a_cookie(viewer: Viewer) -> None:
    reply = viewer.get(f"/runs/sums/x?token={viewer.token}&evaluation=", {})
    assert (reply.status, reply.headers["Location"]) == (303, "/runs/sums/x?evaluation=")
    value, *flags = reply.headers["Set-Cookie"].split("; ")
    assert value == f"holdfast_{viewer.port}={viewer.token}"
    assert {"HttpOnly", "SameSite=Lax", "Path=/"} <= set(flags)
    assert viewer.get("/runs/sums/x", {"Cookie": value}).status == 200


@pytest.mark.parametrize("path", ["//elsewhere.example/x", "/\\elsewhere.example/x", "///elsewhere.example"])
def test_a_redirect_never_leads_to_another_site(viewer: Viewer, path: str) -> None:
    reply = viewer.get(f"{path}?token=x", {"Cookie": f"holdfast_{viewer.port}={viewer.token}"})
    place = reply.headers.get("Location", "/")
    assert place.startswith("/")
    assert not place.startswith(("//", "/\\"))


@pytest.mark.parametrize("token", [True, False])
def test_every_response_has_the_headers_that_protect_it(viewer: Viewer, addresses: list[str], token: bool) -> None:
    given = {"Authorization": f"Bearer {viewer.token}"} if token else {}
    for address in addresses:
        if not address.endswith("/events"):
            reply = viewer.get(address, given)
            assert {name: reply.headers.get(name) for name in HEADERS} == HEADERS, address
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        reply = viewer.get("/", given, method=method)
        assert {name: reply.headers.get(name) for name in HEADERS} == HEADERS, method


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("localhost", True),
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("[::1]", True),
        ("LocalHost", True),
        ("elsewhere.example", False),
        ("localhost.elsewhere.example", False),
        ("127.0.0.1.elsewhere.example", False),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("", False),
    ],
)
def test_a_server_answers_only_to_names_of_the_loopback_interface(viewer: Viewer, name: str, known: bool) -> None:
    """A site whose name is changed to 127.0.0.1 (DNS rebinding) sends its own name as Host."""
    for port in (f":{viewer.port}", ":1", ""):  # another port: ssh -L and VS Code forward to it
        reply = viewer.get("/api/runs", {"Host": f"{name}{port}", "Authorization": f"Bearer {viewer.token}"})
        assert reply.status == (200 if known else 421), (name, port)
        assert known or viewer.token not in f"{reply.headers}{reply.text}"


def test_another_name_must_be_allowed(folder: Path) -> None:
    with Viewer("runs", "--allow-host", "box.example", cwd=folder) as viewer:
        for name, status in (("box.example", 200), ("other.example", 421)):
            headers = {"Host": f"{name}:{viewer.port}", "Authorization": f"Bearer {viewer.token}"}
            assert viewer.get("/", headers).status == status


def test_a_get_writes_nothing_and_there_is_nothing_to_post_to(
    viewer: Viewer, folder: Path, addresses: list[str]
) -> None:
    before = snapshot(folder / "runs")
    for address in addresses:
        if not address.endswith("/events"):
            viewer.get(address)
        for method in ("POST", "PUT", "PATCH", "DELETE"):
            for origin in ("http://elsewhere.example", "null", viewer.url):
                headers = {"Authorization": f"Bearer {viewer.token}", "Origin": origin}
                assert viewer.get(address, headers, method=method, body="value=1").status in (403, 404, 405), address
    assert snapshot(folder / "runs") == before


def test_a_link_works_after_a_restart(folder: Path) -> None:
    with Viewer("runs", cwd=folder) as viewer:
        link = viewer.link
        viewer.kill()
        viewer.restart()
        assert viewer.link == link


def test_the_token_is_kept_in_a_private_file(folder: Path, tmp_path: Path) -> None:
    env = {"XDG_STATE_HOME": str(tmp_path)}
    path = tmp_path / "holdfast" / "view-token"
    with Viewer("runs", cwd=folder, env=env) as viewer:
        first = viewer.token
    assert path.read_text() == first
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)  # others may have read it
    with Viewer("runs", cwd=folder, env=env) as viewer:
        assert viewer.token != first
        assert path.read_text() == viewer.token
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_bytes(b"\xff")
    done = call("view", "runs", "--port", "0", cwd=folder, env=env)
    assert (done.code, done.out) == (2, "")
    assert "view-token cannot be read" in done.err


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "box.example"])
def test_other_machines_are_let_in_only_on_purpose(folder: Path, host: str) -> None:
    done = call("view", "runs", "--port", "0", "--host", host, cwd=folder)
    assert (done.code, done.out) == (2, "")
    assert f"--host {host} lets other machines connect" in done.err
    assert "not encrypted; add --yes-expose if you want that" in done.err
    assert done.err.count("\n") == 1


def test_an_exposed_server_names_this_machine_and_answers_to_its_addresses(folder: Path) -> None:
    with Viewer("runs", "--host", "0.0.0.0", "--yes-expose", cwd=folder) as viewer:
        assert viewer.link.startswith(f"http://{socket.gethostname()}:{viewer.port}/?token=")
        for name, status in (("10.1.2.3", 200), (socket.gethostname(), 200), ("elsewhere.example", 421)):
            headers = {"Host": f"{name}:{viewer.port}", "Authorization": f"Bearer {viewer.token}"}
            assert viewer.get("/", headers).status == status
        assert viewer.get("/", {}).status == 401


def test_permission_to_expose_alone_exposes_nothing(folder: Path) -> None:
    with Viewer("runs", "--yes-expose", cwd=folder) as viewer:
        assert viewer.link.startswith("http://127.0.0.1:")


def test_a_port_in_use_is_said_in_one_sentence(viewer: Viewer, folder: Path) -> None:
    done = call("view", "runs", "--port", str(viewer.port), cwd=folder)
    assert (done.code, done.out) == (2, "")
    assert f"cannot listen on 127.0.0.1 port {viewer.port}: Address already in use" in done.err
    assert "--port 0" in done.err
    assert done.err.count("\n") == 1


def test_a_store_that_is_not_there_is_said_in_one_sentence(tmp_path: Path) -> None:
    done = call("view", "--port", "0", cwd=tmp_path)
    assert done.code == 2
    assert "there is no folder" in done.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_quickly_and_quietly(folder: Path, number: signal.Signals) -> None:
    with Viewer("runs", cwd=folder) as viewer:
        with stream(viewer, "/api/runs/sums/x/events") as events:
            assert next(events).name == "hello"
            began = time.monotonic()
            done = viewer.stop(number)
        assert (done.code, done.out, done.err) == (0, "", "")
        assert time.monotonic() - began < 30


def test_it_serves_although_nobody_reads_its_output(folder: Path) -> None:
    """`holdfast view | head -1`"""
    with Viewer("runs", cwd=folder) as viewer:
        assert viewer.get("/").status == 200
        viewer.close_output()
        assert viewer.get("/no-such-page").status == 404
        assert viewer.get("/").status == 200


def test_a_full_disk_as_output_ends_it(folder: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full")
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "holdfast", "view", "runs", "--port", "0", "--no-open"]
        done = subprocess.run(
            command, cwd=folder, env=environment(), stdout=full, stderr=subprocess.PIPE, text=True, timeout=120
        )
    assert done.returncode == 8
    assert "Traceback" not in done.stderr


def test_a_run_that_appears_later_is_listed(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    with Viewer(store, cwd=folder) as viewer:
        assert viewer.get("/api/runs").json()["total"] == 0
        assert "no runs" in viewer.get("/").text
        assert run("run", "eval.yaml", "--id", "y", "--store", store, cwd=folder).code == 0
        assert viewer.get("/api/runs").json()["total"] == 1
        assert viewer.get("/runs/sums/y").status == 200


def test_two_stores_with_runs_of_one_name_are_told_apart_by_uid(folder: Path, tmp_path: Path) -> None:
    assert run("run", "eval.yaml", "--id", "x", "--store", tmp_path / "runs", cwd=folder).code == 0
    with Viewer("runs", tmp_path / "runs", cwd=folder) as viewer:
        listed = viewer.get("/api/runs").json()["runs"]
        uids = {each["uid"] for each in listed}
        assert len(uids) == 2
        assert viewer.get("/runs/sums/x").status == 404
        shown = {viewer.get(f"/api/runs/sums/x?uid={uid}").json()["summary"]["folder"] for uid in uids}
        assert shown == {each["summary"]["folder"] for each in listed}
    both = (folder / "runs" / "sums" / "x", tmp_path / "runs" / "sums" / "x")
    with Viewer(*both, cwd=folder) as viewer:  # two folders of runs instead of stores
        assert {each["uid"] for each in viewer.get("/api/runs").json()["runs"]} == uids


def test_a_damaged_or_removed_run_does_not_hide_the_others(folder: Path, tmp_path: Path) -> None:
    store = tmp_path / "runs"
    for name in ("good", "bad", "gone"):
        assert run("run", "eval.yaml", "--id", name, "--store", store, cwd=folder).code == 0
    for segment in (store / "sums" / "bad" / "journal").iterdir():
        segment.write_bytes(b"damaged")
    places = [store / "sums" / name for name in ("good", "bad", "gone")]
    with Viewer(*places, cwd=folder) as viewer:
        os.rename(places[2], tmp_path / "moved")
        listed = {
            each["summary"]["run_id"]: each["summary"]["status"] for each in viewer.get("/api/runs").json()["runs"]
        }
        assert listed["good"] == "completed"
        assert listed["bad"] != "completed"
        assert listed["gone"] == "unreadable"
        assert viewer.get("/").status == 200
        assert viewer.get("/runs/sums/gone").status == 404
        assert viewer.get("/runs/sums/bad").status in (200, 422)
