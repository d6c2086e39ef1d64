"""A `.env` file of a downloaded folder provides values for the spec. It never controls Holdfast or other programs."""

import json
import re
from pathlib import Path

import pytest

from holdfast.spec.source import variables
from tests.e2e.commands import call, exported, write_spec
from tests.e2e.test_secrets import echo

CONTROLLING = (
    "HOLDFAST_STORE",
    "HOLDFAST_UNCONFINED",
    "http_proxy",
    "HTTPS_PROXY",
    "ALL_PROXY",
    "no_proxy",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "PYTHONPATH",
    "PYTHON_GIL",
    "PYTHONHOME",
    "LD_PRELOAD",
    "DYLD_INSERT_LIBRARIES",
    "XDG_STATE_HOME",
    "TMPDIR",
    "GIT_DIR",
)
"""PATH and HOME are always set in the environment, which wins anyway."""
TELLS_ENVIRONMENT = """\
import json, os

async def answer(request):
    return json.dumps(sorted(name for name, value in os.environ.items() if value == "from the file"))
"""


@pytest.fixture(autouse=True)
def _nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the user who runs the tests would win over the file."""
    for name in CONTROLLING:
        monkeypatch.delenv(name, raising=False)


def names_set_by_file(folder: Path, names: tuple[str, ...], mentioned: bool) -> tuple[list[str], str]:
    """What a run's process has in its environment from a `.env` file, and what the command said."""
    (folder / "teller.py").write_text(TELLS_ENVIRONMENT)
    (folder / ".env").write_text("".join(f"{name}='from the file'\n" for name in names))
    said = " ".join(f"${{{name}:-}}" for name in names) if mentioned else ""
    spec = write_spec(folder, 1, model={"provider": "teller:answer", "options": {}}, description=said)
    done = call("run", spec, "--id", "x", "--store", folder / "runs", cwd=folder)
    assert done.code == 0, done.err
    return json.loads(exported("x", folder / "runs")[0]["output"]), done.err


@pytest.mark.parametrize("mentioned", [True, False])
def test_variables_that_control_programs_are_never_taken_from_a_file(tmp_path: Path, mentioned: bool) -> None:
    found, err = names_set_by_file(tmp_path, CONTROLLING, mentioned)
    assert found == []
    assert all(name in err for name in CONTROLLING)
    assert err.count("warning: .env") == 1


def test_without_the_guard_a_file_sets_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = tuple(each for each in CONTROLLING if not each.startswith(("HOLDFAST_", "TMPDIR")))
    monkeypatch.setattr(variables, "_REFUSED", re.compile("(?!)"))
    found, _ = names_set_by_file(tmp_path, names, mentioned=True)
    assert found == sorted(names)


def test_a_file_sets_only_what_the_spec_mentions(tmp_path: Path) -> None:
    (tmp_path / "teller.py").write_text(TELLS_ENVIRONMENT)
    names = ("MY_KEY", "DESCRIBED", "SET_KEY", "GROQ_API_KEY", "ANTHROPIC_API_KEY", "OTHER_KEY")
    (tmp_path / ".env").write_text("".join(f"{name}='from the file'\n" for name in names))
    roles = {"a": "groq/llama", "b": {"provider": "anthropic", "model": "m"}}
    model = {"provider": "teller:answer", "options": {}, "api_key_env": "MY_KEY"}
    write_spec(tmp_path, 1, model=model, description="${DESCRIBED}", roles=roles)
    changed = "models.arith.headers.X-Custom=${SET_KEY}"
    done = call("run", "eval.yaml", "--id", "x", "--set", changed, cwd=tmp_path)
    assert done.code == 0, done.err
    assert json.loads(exported("x", tmp_path / "runs")[0]["output"]) == sorted(set(names) - {"OTHER_KEY"})
    assert ".env" not in done.err


def test_the_key_that_litellm_reads_for_a_model_is_mentioned() -> None:
    spec = {"models": [{"provider": "litellm", "model": "azure/gpt-x"}]}
    assert variables.mentioned_variables(spec) == {"AZURE_API_KEY"}


def test_a_resume_takes_the_variables_of_its_stored_spec(tmp_path: Path) -> None:
    with echo(401) as (address, seen):
        write_spec(tmp_path, 1, f"http://{address}", model={"api_key_env": "MY_KEY"})
        (tmp_path / ".env").write_text("MY_KEY=first-key-of-the-file\n")
        call("run", "eval.yaml", "--id", "x", cwd=tmp_path)
        (tmp_path / ".env").write_text("MY_KEY=second-key-of-the-file\n")
        call("resume", "x", cwd=tmp_path)
    assert "first-key-of-the-file" in seen[0]
    assert "second-key-of-the-file" in seen[-1]


def run_behind_proxy(folder: Path, proxy: str) -> None:
    """A server that only a proxy could reach."""
    (folder / ".env").write_text(f"http_proxy=http://{proxy}\nMY_KEY=a-key-of-the-user\n")
    model = {"api_key_env": "MY_KEY", "request_retries": 0}
    write_spec(folder, 1, "http://models.invalid/v1", model=model, task={"sample_retries": 0})
    assert call("run", "eval.yaml", "--id", "x", cwd=folder).code == 1


def test_a_file_cannot_send_requests_and_keys_to_another_server(tmp_path: Path) -> None:
    with echo(401) as (address, seen):
        run_behind_proxy(tmp_path, address.removesuffix("/v1"))
    assert seen == []


def test_without_the_guard_another_server_receives_the_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variables, "is_refused", lambda name, value: False)
    monkeypatch.setattr(variables, "mentioned_variables", lambda spec, sets: {"http_proxy", "MY_KEY"})
    with echo(401) as (address, seen):
        run_behind_proxy(tmp_path, address.removesuffix("/v1"))
    assert "a-key-of-the-user" in seen[0]


S3 = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION")
AZURE = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN")
PLACES = (
    *("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_STS_ENDPOINT", "AWS_PROFILE", "AWS_SHARED_CREDENTIALS_FILE"),
    *("AZURE_STORAGE_ENDPOINT", "AZURE_STORAGE_ACCOUNT_NAME", "AZURE_AUTHORITY_HOST"),
    *("GOOGLE_BASE_URL", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SERVICE_ACCOUNT_KEY", "GOOGLE_APPLICATION_CREDENTIALS"),
)


@pytest.mark.parametrize(
    ("spec", "sets", "names"),
    [
        ({"mirror": {"url": "s3://bucket/evals"}}, (), S3),
        ({"mirror": {"url": "az://container/evals"}}, (), AZURE),
        ({"mirror": {"url": "gs://bucket/evals"}}, (), ()),
        ({"mirror": {"url": "/a/folder"}}, (), ()),
        ({}, ("mirror.url=s3://bucket/evals",), S3),
        ({}, (), ()),
        ({"mirror": {"url": 7}}, (), ()),
    ],
)
def test_a_file_sets_the_keys_of_the_specs_mirror_and_not_where_it_is(
    tmp_path: Path, spec: dict[str, object], sets: tuple[str, ...], names: tuple[str, ...]
) -> None:
    path = tmp_path / ".env"
    path.write_text("".join(f"{name}=eu-1\n" for name in (*S3, *AZURE, *PLACES)))
    found: dict[str, str] = {}
    variables.fill_environment(spec, sets, found, str(path))
    assert sorted(found) == sorted(names)
    assert variables.refused_variables({}, str(path)) == list(PLACES)


@pytest.mark.parametrize("region", ["evil.example/", "eu.evil.example", "x@evil.example", "a\tb"])
def test_a_region_of_a_file_cannot_name_another_server(tmp_path: Path, region: str) -> None:
    path = tmp_path / ".env"
    path.write_text(f"AWS_REGION='{region}'\n")
    found: dict[str, str] = {}
    variables.fill_environment({"mirror": {"url": "s3://bucket/evals"}}, (), found, str(path))
    assert found == {}
    assert variables.refused_variables({}, str(path)) == ["AWS_REGION"]


def test_the_command_warns_of_what_a_file_may_not_say_of_a_mirror(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    (tmp_path / ".env").write_text("AWS_ENDPOINT_URL=http://evil.example\nAWS_ACCESS_KEY_ID=a\n")
    done = call("ls", cwd=tmp_path)
    assert "warning: .env: AWS_ENDPOINT_URL is ignored" in done.err
    assert "AWS_ACCESS_KEY_ID" not in done.err
