"""Runs of strangers: their spec is code, and none of it is executed unless the user says so."""

import multiprocessing
import os
import shutil
import stat
import sys
from pathlib import Path

import pytest

from holdfast.errors import UsageError
from holdfast.runs.store.lookup import run_location
from holdfast.runs.store.trust import Executed, copy_trust, executed_by, list_path, remember, require_trust
from holdfast.spec import build_spec
from tests.e2e.commands import Done, call, run, shown, snapshot, write_spec

SOLVER = """\
import os, pathlib
pathlib.Path(os.environ.get("MARKER", "/dev/null")).write_text("executed")

async def solve(sample, ctx):
    return await ctx.generate()
"""
KEY = "sums/arith/s0001/1"
EXECUTING = [
    ("resume", "x"),
    ("retry", "x"),
    ("extend", "x", "--set", "tasks.sums.repeats=2"),
    ("fork", "x"),
    ("fork", "x", "--dry-run"),
    ("replay", "x", KEY),
    ("score", "x"),
    ("score", "x", "--scorers", "exact_match"),
    ("score", "x", "--anomalies"),
]


class Scene:
    """A run that its author made elsewhere, in a folder of a user who has never seen it."""

    def __init__(self, author: Path, folder: Path) -> None:
        self.folder = folder / "downloads"
        self.marker = folder / "marker"
        shutil.copytree(author, self.folder)
        self.state = folder / "state"
        self.env = {"XDG_STATE_HOME": str(self.state), "MARKER": str(self.marker)}

    def call(self, *arguments: str | Path) -> Done:
        sys.modules.pop("evil", None)
        try:
            return call(*arguments, cwd=self.folder, env=self.env)
        finally:
            sys.modules.pop("evil", None)


@pytest.fixture(scope="module")
def author(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The author's folder, with the run in it."""
    folder = tmp_path_factory.mktemp("author")
    (folder / "evil.py").write_text(SOLVER)
    spec = write_spec(folder, rows=2, task={"solver": "evil:solve"})
    made = call("run", spec, "--id", "x", cwd=folder, env={"XDG_STATE_HOME": str(folder / "state")})
    sys.modules.pop("evil", None)
    assert made.code == 0, made.err
    return folder


@pytest.fixture
def scene(author: Path, tmp_path: Path) -> Scene:
    return Scene(author, tmp_path)


@pytest.mark.parametrize("command", EXECUTING, ids=" ".join)
def test_a_command_that_executes_refuses_the_run_of_a_stranger(scene: Scene, command: tuple[str, ...]) -> None:
    before = snapshot(scene.folder)
    done = scene.call(*command)
    assert done.code == 2
    assert "evil:solve" in done.err
    assert f"holdfast {' '.join(command)} --trust" in done.err
    assert not scene.marker.exists()
    assert snapshot(scene.folder) == before


@pytest.mark.parametrize("command", EXECUTING, ids=" ".join)
def test_the_same_command_executes_it_when_the_user_trusts_it_and_needs_that_once(
    scene: Scene, command: tuple[str, ...]
) -> None:
    """Also the negative control: without the refusal, the code of the run is executed."""
    done = scene.call(*command, "--trust")
    assert done.code == 0, done.err
    assert scene.marker.exists() == (command[0] != "retry"), "no sample has failed, so a retry executes nothing"
    scene.marker.unlink(missing_ok=True)
    again = scene.call("replay", "x", KEY)
    assert again.code == 0, again.err
    assert scene.marker.exists()


@pytest.mark.parametrize("command", [("resume", "x"), ("fork", "x"), ("fork", "x", "--dry-run"), ("replay", "x", KEY)])
def test_a_spec_on_the_command_line_is_the_users_own(scene: Scene, command: tuple[str, ...]) -> None:
    position = 3 if command[0] == "replay" else 2
    done = scene.call(*command[:position], scene.folder / "eval.yaml", *command[position:])
    assert done.code == 0, done.err
    assert scene.marker.exists()


def test_the_run_command_with_a_spec_continues_any_run_and_makes_it_the_users(scene: Scene) -> None:
    assert scene.call("run", "eval.yaml", "--id", "x").code == 0
    assert scene.call("resume", "x").code == 0


def test_runs_that_this_user_made_ask_for_nothing(scene: Scene) -> None:
    assert scene.call("run", "eval.yaml", "--id", "mine").code == 0
    assert scene.call("fork", "mine", "--id", "forked").code == 0
    for command in (("resume", "mine"), ("replay", "mine", KEY), ("score", "mine"), ("resume", "forked")):
        done = scene.call(*command)
        assert done.code == 0, done.err


def test_a_copy_of_my_run_that_another_changed_is_not_mine(scene: Scene) -> None:
    assert scene.call("run", "eval.yaml", "--id", "mine").code == 0
    theirs = {**scene.env, "XDG_STATE_HOME": str(scene.folder / "their-state")}
    made = call(
        *(
            "resume",
            "mine",
            "--trust",
            "--set",
            f"mirror.url={(scene.folder / 'elsewhere').as_uri()}",
            "--set",
            "mirror.exclusive=false",
        ),
        cwd=scene.folder,
        env=theirs,
    )
    assert made.code == 0, made.err
    done = scene.call("resume", "mine")
    assert done.code == 2
    assert "has changed since you last ran it" in done.err
    assert "/elsewhere (mirror)" in done.err


def test_reading_commands_execute_nothing_of_a_run(scene: Scene) -> None:
    """In a folder full of modules with tempting names; some also in processes of their own, which import everything."""
    poison = f"import pathlib; pathlib.Path({str(scene.marker)!r}).write_text(__file__)\n"
    names = ("conftest", "sitecustomize", "usercustomize", "scipy", "numpy", "yaml", "msgspec", "rich", "typer", "evil")
    for folder in (scene.folder, scene.folder / "runs" / "sums" / "x"):
        for name in names:
            (folder / f"{name}.py").write_text(poison)
    (scene.folder / ".env").write_text("PYTHONPATH=.\nPYTHONSTARTUP=evil.py\nHOLDFAST_PLUGINS=evil\n")
    commands = [
        ("ls",),
        ("show", "x"),
        ("show", "x", KEY),
        ("report", "x"),
        ("export", "x"),
        ("compare", "x", "x"),
        ("verify", "x", "--scores"),
        ("doctor", "x"),
        ("cost", "x"),
        ("leaderboard", "sums"),
        ("gate", "x", "--min", "numeric=0"),
        ("score", "x", "--list"),
    ]
    apart = [("report", "x"), ("verify", "x", "--scores")]
    for start, command in [*((call, each) for each in commands), *((run, each) for each in apart)]:
        done = start(*command, cwd=scene.folder, env=scene.env)
        assert "Traceback" not in done.err, done.err
        assert done.code in (0, 1, 2, 7), (command, done.said)
        assert not scene.marker.exists(), (command, scene.marker.read_text())


def test_a_module_beside_the_spec_never_takes_the_place_of_an_installed_one(scene: Scene) -> None:
    poison = f"import pathlib; pathlib.Path({str(scene.marker)!r}).write_text('shadow')\n"
    for name in ("scipy", "numpy", "statistics", "aiohttp"):
        (scene.folder / f"{name}.py").write_text(poison)
    env = {**scene.env, "MARKER": "/dev/null"}
    done = run("run", "eval.yaml", "--id", "y", cwd=scene.folder, env=env)
    assert done.code == 0, done.err
    assert not scene.marker.exists()
    control = run("run", "eval.yaml", "--id", "z", cwd=scene.folder, env={**env, "PYTHONPATH": str(scene.folder)})
    assert control.code != 0 or scene.marker.exists()
    assert scene.marker.exists(), "negative control: with the folder first on the path, the attack works"


def test_a_module_of_the_user_that_an_installed_one_hides_is_refused_with_both_paths(scene: Scene) -> None:
    (scene.folder / "statistics.py").write_text(SOLVER)
    done = scene.call("run", "eval.yaml", "--set", "tasks.sums.solver=statistics:solve")
    assert done.code == 2
    assert "rename yours" in done.err
    assert str(scene.folder / "statistics.py") in done.err


def test_a_refusal_names_code_commands_servers_key_variables_and_files() -> None:
    spec = build_spec(
        {
            "models": [
                {
                    "name": "a",
                    "provider": "openai",
                    "model": "m",
                    "base_url": "http://evil.test/v1",
                    "api_key_env": "KEY_A",
                },
                {"name": "b", "provider": "mine:provider", "headers": {"X": "Bearer ${TOKEN_B}"}},
                {"name": "c", "provider": "anthropic", "model": "m"},
            ],
            "tasks": [
                {
                    "name": "t1",
                    "dataset": {"path": "a.jsonl"},
                    "prompt": "x",
                    "solver": {"command": {"run": ["sh", "-c", "id"]}},
                },
                {
                    "name": "t2",
                    "dataset": {"path": "b.jsonl"},
                    "prompt": "x",
                    "solver": {"react": {"tools": ["my.tools:look", {"mcp": {"command": ["npx", "serve"]}}]}},
                    "scorers": [{"regex": {"pattern": "x", "extract": "own:extract"}}, "their_scorer"],
                },
            ],
            "mirror": {"url": "s3://bucket/x"},
        },
        "spec",
    )
    shown = "\n".join(executed_by(spec, "/srv/author/eval.yaml").lines())
    for text in (
        "mine:provider",
        "my.tools:look",
        "own:extract",
        "their_scorer",
        "/srv/author",
        "sh -c id",
        "npx serve",
        "http://evil.test/v1 with $KEY_A",
        "$TOKEN_B",
        "the server of anthropic with $ANTHROPIC_API_KEY",
        "s3://bucket/x",
        "a.jsonl",
    ):
        assert text in shown


def test_names_in_a_refusal_cannot_forge_lines_or_escape_sequences() -> None:
    lines = list(Executed(code=("a:b\n  safe: yes",), commands=("\x1b[2Jrm", "\u202ex"), servers=("y" * 9999,)).lines())
    assert len(lines) == 3
    assert all(line.isprintable() and len(line) < 700 for line in lines)


def test_the_list_is_private_and_only_appended_to(state: Path) -> None:
    remember("1" * 32, Executed())
    remember("2" * 32, Executed())
    remember("1" * 32, Executed())
    path = state / "holdfast" / "runs"
    assert list_path() == str(path)
    assert len(path.read_text().splitlines()) == 2
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_processes_that_add_to_the_list_at_once_keep_each_others_lines(state: Path) -> None:
    workers = [multiprocessing.get_context("fork").Process(target=_remember_many, args=(i,)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    lines = (state / "holdfast" / "runs").read_text().splitlines()
    assert {line.split()[0] for line in lines} == {f"run-{i}-{j}" for i in range(4) for j in range(50)}


def _remember_many(worker: int) -> None:
    for j in range(50):
        remember(f"run-{worker}-{j}", Executed())


def test_a_uid_cannot_add_lines_of_its_own(state: Path) -> None:
    victim = f"victim {Executed().digest()}"
    remember(f"evil {Executed().digest()}\n{victim}", Executed())
    assert victim not in (state / "holdfast" / "runs").read_text().splitlines()


def test_a_copy_that_this_user_makes_of_a_run_is_trusted_only_if_the_run_is(state: Path) -> None:
    remember("mine", Executed())
    copy_trust("mine", "copy of mine", Executed())
    copy_trust("theirs", "copy of theirs", Executed())
    place = run_location(str(state), "e", "r")
    require_trust(place, "copy of mine", Executed(), given=False)
    with pytest.raises(UsageError):
        require_trust(place, "copy of theirs", Executed(), given=False)


def test_a_line_that_a_crash_cut_off_costs_only_itself(state: Path) -> None:
    remember("a", Executed())
    with open(state / "holdfast" / "runs", "a") as file:
        file.write("b 01")
    remember("c", Executed())
    place = run_location(str(state), "e", "r")
    require_trust(place, "a", Executed(), given=False)
    require_trust(place, "c", Executed(), given=False)
    with pytest.raises(UsageError):
        require_trust(place, "b", Executed(), given=False)


@pytest.mark.parametrize("trick", ["link", "writable by others", "another owner"])
def test_a_list_that_another_user_could_have_written_is_not_believed(state: Path, trick: str) -> None:
    remember("a", Executed())
    path = state / "holdfast" / "runs"
    place = run_location(str(state), "e", "r")
    require_trust(place, "a", Executed(), given=False)  # negative control
    if trick == "link":
        path.rename(path.with_name("elsewhere"))
        path.symlink_to("elsewhere")
    elif trick == "writable by others":
        path.chmod(0o666)
    else:
        if os.geteuid() != 0:
            pytest.skip("only root can give a file to another user")
        os.chown(path, 65534, -1)
    with pytest.raises(UsageError):
        require_trust(place, "a", Executed(), given=False)


def test_a_list_that_cannot_be_written_does_not_stop_a_run_and_is_reported_once(scene: Scene) -> None:
    scene.state.write_text("a file where the folder should be")
    done = run("run", "eval.yaml", "--id", "y", cwd=scene.folder, env=scene.env)
    assert done.code == 0, done.err
    assert done.err.count("cannot be written") == 1
    assert scene.call("resume", "y").code == 2
    assert scene.call("resume", "y", "--trust").code == 0


def test_the_same_command_on_a_new_machine_continues_from_the_mirror_without_trust(tmp_path: Path) -> None:
    mirror = (tmp_path / "mirror").as_uri()
    pods = [tmp_path / name for name in ("first", "second", "third")]
    for pod in pods:
        pod.mkdir()
        write_spec(pod, rows=4, mirror={"url": mirror, "exclusive": False}, limits={"run": {"requests": 2}})
    envs = [{"XDG_STATE_HOME": str(pod / "state"), "HOME": str(pod)} for pod in pods]
    first = call("run", "eval.yaml", "--id", "x", cwd=pods[0], env=envs[0])
    assert first.code == 6, first.err
    raised = ("--set", "limits.run.requests=100")
    second = call("run", "eval.yaml", "--id", "x", *raised, cwd=pods[1], env=envs[1])
    assert second.code == 0, second.err
    assert shown("x", pods[1] / "runs")["finished"] == 4
    by_url = ("resume", f"{mirror}/sums/x")
    refused = call(*by_url, cwd=pods[2], env=envs[2])
    assert refused.code == 2
    assert "--trust" in refused.err
    assert call(*by_url, "--trust", cwd=pods[2], env=envs[2]).code == 0


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path
