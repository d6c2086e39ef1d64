"""What opens a store reaches the store and nothing else: no file, no object, no output, no error text."""

import re
from pathlib import Path

import pytest

from holdfast.journal.object_store import open_objects
from tests.e2e.commands import Done, call, files_in, write_spec
from tests.e2e.test_secrets import echo, files_with
from tests.stores import S3

KEY, SECRET, TOKEN = "AKIA0VERYSECRETKEYID", "very+secret/key0123456789", "session-token-0123456789"
SIGNATURE = "c2lnbmF0dXJlLW9mLWEtc2Fz"
SECRETS = (KEY, SECRET, TOKEN, SIGNATURE)
LOOKS = (("show", "x", "--json"), ("show", "x"), ("ls", "--json"), ("doctor",), ("recover", "--list"))


def hidden(*said: Done) -> None:
    """Also as it is written in a URL, or as a part of it."""
    for done in said:
        assert [secret for secret in SECRETS if secret in done.said] == [], done.said
        assert "Traceback" not in done.said


def nowhere(folder: Path) -> None:
    for secret in SECRETS:
        assert files_with(folder, secret) == []


def s3_environment(address: str) -> dict[str, str]:
    keys = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": TOKEN}
    return {**keys, "AWS_ENDPOINT_URL": f"http://{address}", "AWS_REGION": "us-east-1"}


def test_the_keys_of_a_store_are_kept_nowhere(tmp_path: Path, s3: S3, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = s3.bucket()
    env = s3_environment(f"127.0.0.1:{s3.port}") | {"HOLDFAST_CACHE": str(tmp_path / "cache")}
    spec = write_spec(tmp_path, 3, mirror={"url": bucket.url, "seconds": 0.2})
    done = call("run", spec, "--id", "x", cwd=tmp_path, env=env)
    assert done.code == 0, done.err
    url = f"{bucket.url}/sums/x"
    hidden(done, *(call(*look, cwd=tmp_path, env=env) for look in LOOKS))
    hidden(call("show", url, cwd=tmp_path, env=env), call("ls", "--store", bucket.url, cwd=tmp_path, env=env))
    nowhere(tmp_path)
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    objects = open_objects(url)
    held = {each.name: objects.get(each.name) or b"" for each in objects.listed("")}
    assert {"spec.yaml", "lease/000001", "lease/000001.beat"} <= set(held)
    assert [name for name, data in held.items() for secret in SECRETS if secret.encode() in data] == []


def failures(folder: Path, url: str, env: dict[str, str]) -> list[Done]:
    """Everything that meets the store, which refuses."""
    spec = write_spec(folder, 2, mirror={"url": url, "seconds": 0.2})
    commands = (
        ("run", spec, "--id", "x"),
        ("ls", "--store", url),
        ("show", f"{url}/sums/x"),
        ("verify", "x", "--store", url),
        ("export", f"{url}/sums/x"),
        ("recover", f"{url}/sums/x"),
        ("recover", "--list", url),
        ("resume", f"{url}/sums/x"),
    )
    return [call(*command, cwd=folder, env=env | {"HOLDFAST_CACHE": str(folder / "cache")}) for command in commands]


@pytest.mark.parametrize("status", [302, 400, 401, 403, 500])
def test_a_store_that_repeats_what_it_was_sent_says_nothing_of_it_through_us(tmp_path: Path, status: int) -> None:
    with echo(status) as (address, seen):
        env = s3_environment(address.removesuffix("/v1"))
        for done in failures(tmp_path, "s3://bucket/evals", env):
            assert done.code == 2
            assert re.fullmatch(r"holdfast: \S.{20,400}\n", done.err), done.err
            hidden(done)
    nowhere(tmp_path)
    assert all(KEY in sent and TOKEN in sent for sent in seen)
    assert len(seen) >= 8
    assert not list((tmp_path / "runs").rglob("*.jsonl")), "nothing was begun"


def test_the_signature_of_azure_is_kept_nowhere(tmp_path: Path) -> None:
    with echo(403) as (address, seen):
        env = {
            "AZURE_STORAGE_ACCOUNT_NAME": "account",
            "AZURE_STORAGE_SAS_TOKEN": f"sv=2022-11-02&ss=b&sig={SIGNATURE}%3D",
            "AZURE_STORAGE_ENDPOINT": f"http://{address.removesuffix('/v1')}",
        }
        for done in failures(tmp_path, "az://container/evals", env):
            assert done.code == 2
            assert re.fullmatch(r"holdfast: \S.{20,400}\n", done.err), done.err
            hidden(done)
    nowhere(tmp_path)
    assert all(SIGNATURE in sent for sent in seen)
    assert len(seen) >= 8


@pytest.mark.parametrize(
    "url",
    [
        f"s3://{KEY}:{SECRET.replace('/', '')}@bucket/evals",
        f"az://container/evals?sv=2022&sig={SIGNATURE}",
        f"s3://bucket/evals?X-Amz-Security-Token={TOKEN}",
        f"file://{KEY}:x@host/mirror",
    ],
)
def test_a_url_with_credentials_is_refused_and_not_repeated(tmp_path: Path, url: str) -> None:
    spec = write_spec(tmp_path, 2, mirror={"url": url})
    (tmp_path / "plain").mkdir()
    plain = write_spec(tmp_path / "plain", 2)
    every = [
        call("run", spec, "--id", "x", cwd=tmp_path),
        call("check", spec, cwd=tmp_path),
        call("run", plain, "--id", "x", "--set", f"mirror.url={url}", cwd=tmp_path),
        call("ls", "--store", url, cwd=tmp_path),
        call("show", url, cwd=tmp_path),
        call("recover", url, cwd=tmp_path),
        call("recover", "--list", url, cwd=tmp_path),
        call("resume", url, cwd=tmp_path),
    ]
    for done in every:
        assert (done.code, done.out) == (2, ""), done.said
        assert "credentials belong into the environment" in done.err
        assert done.err.count("\n") == 1
    hidden(*every)
    assert not (tmp_path / "runs").exists()
    assert [path.name for path in files_in(tmp_path) if path.suffix not in (".yaml", ".jsonl")] == []


@pytest.mark.parametrize(
    ("url", "env", "said"),
    [
        ("s3://bucket/evals", {**s3_environment("127.0.0.1:9")}, "127.0.0.1:9 cannot be reached: Connection refused"),
        ("ftp://bucket/evals", {}, "is no URL of a store"),
        ("s3:///evals", {}, "names no bucket"),
    ],
)
def test_a_store_that_is_not_there_is_reported_in_one_line(
    tmp_path: Path, url: str, env: dict[str, str], said: str
) -> None:
    for done in failures(tmp_path, url, env):
        assert done.code == 2
        assert said in done.err
        assert done.err.count("\n") == 1


def test_a_bucket_or_a_run_that_is_not_there_is_reported_in_one_line(tmp_path: Path, s3: S3) -> None:
    for done in failures(tmp_path, "s3://no-such-bucket/evals", s3.env):
        assert done.code == 2
        assert "The specified bucket does not exist (NoSuchBucket)" in done.err
        assert done.err.count("\n") == 1
    bucket = s3.bucket()
    for name in (bucket.url, f"{bucket.url}/sums/x"):
        done = call("show", name, cwd=tmp_path, env=s3.env)
        assert (done.code, done.err.count("\n")) == (2, 1)
        assert "holds no run" in done.err
    empty = call("ls", "--store", bucket.url, cwd=tmp_path, env=s3.env)
    assert (empty.code, empty.out.startswith(f"No runs in {bucket.url}")) == (0, True)
