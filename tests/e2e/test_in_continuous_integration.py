"""A run in CI: JUnit XML that every server reads, a job summary, and scores asserted in pytest."""

import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.e2e.commands import call, run, snapshot, write_rows, write_spec

pytest_plugins = ["pytester"]

ODD = "a<b>&\"'|`*]]> \x00\x1b[31m 😀 \ufffe"


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five answers: right, wrong, failed, without a score, and one on which the scorer breaks."""
    folder = tmp_path_factory.mktemp("mixed")
    names = ["right", "wrong", "bad", "none", "broken"]
    rows = [{"id": name, "question": name, "answer": "x"} for name in names]
    (folder / "own.py").write_text(
        "async def answer(request):\n"
        "    text = request.messages[-1]['content']\n"
        "    if text == 'bad':\n"
        "        raise ValueError('no | <b>')\n"
        "    return text\n"
        "def judged(sample, answer):\n"
        "    return {'right': True, 'wrong': 0.5, 'none': None}[answer.text]\n"
    )
    model = {"provider": "own:answer", "options": {}, "name": "m|1"}
    task = {"prompt": "{question}", "scorers": ["own:judged"], "sample_retries": 0}
    spec = write_spec(folder, model=model, task=task)
    write_rows(folder / "sums.jsonl", rows)
    assert call("run", spec, "--id", "mixed", cwd=folder).code == 1
    return folder


def cases(text: str) -> dict[str, ElementTree.Element]:
    (suite,) = ElementTree.fromstring(text)
    cases = suite.findall("testcase")
    found = {case.attrib["name"].split("/")[2]: case for case in cases}
    assert int(suite.attrib["tests"]) == len(cases)
    for kind, count in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        assert int(suite.attrib[count]) == sum(case.find(kind) is not None for case in cases), kind
    return found


def kinds(text: str) -> dict[str, list[str]]:
    """How each case ended: nothing if it passed. What was asked stands beside it."""
    return {name: [each.tag for each in case if each.tag != "system-out"] for name, case in cases(text).items()}


def test_each_key_is_a_test_case(mixed: Path) -> None:
    done = run("report", "mixed", "--format", "junit", cwd=mixed)
    assert done.code == 0, done.err
    told = {"right": [], "wrong": [], "bad": ["error"], "none": ["skipped"], "broken": ["error"]}
    assert kinds(done.out) == told
    error = cases(done.out)["bad"].find("error")
    assert error is not None
    assert "no | <b>" in error.attrib["message"]
    skipped = cases(done.out)["none"].find("skipped")
    assert skipped is not None
    assert "question: none" in (skipped.text or "")


def test_a_threshold_says_which_answers_fail(mixed: Path, tmp_path: Path) -> None:
    path = tmp_path / "junit.xml"
    done = call("report", "mixed", "--format", "junit", "--at-least", "0.6", "--output", path, cwd=mixed)
    assert (done.code, done.out, done.err) == (0, "", f"wrote {path}\n")
    text = path.read_text("utf-8")
    assert kinds(text)["wrong"] == ["failure"]
    assert kinds(text)["right"] == []


def test_whatever_an_answer_holds_the_file_parses(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, 2, model={"options": {"reply": ODD}})
    assert call("run", spec, "--id", "odd", cwd=tmp_path).code == 0
    done = run("report", "odd", "--format", "junit", cwd=tmp_path)
    assert done.code == 0, done.err
    failure = cases(done.out)["s0001"].find("failure")
    assert failure is not None
    assert failure.text is not None
    assert "a<b>&\"'|`*]]>" in failure.text


def test_the_summary_of_a_job_gets_the_report_appended(mixed: Path, tmp_path: Path) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    env = {"GITHUB_STEP_SUMMARY": str(summary)}
    printed = call("report", "mixed", "--format", "markdown", cwd=mixed, env=env).out
    assert summary.read_text() == "before\n"
    for _ in range(2):
        done = call("report", "mixed", "--github", cwd=mixed, env=env)
        assert done.code == 0, done.err
        assert "judged" in done.out
    assert summary.read_text() == f"before\n{printed}{printed}"
    (row,) = [line for line in printed.splitlines() if line.startswith("| sums")]
    assert row.split(" | ")[1] == r"m\|1"
    assert "0.7500" in row
    assert r"no \| \<b\>" in printed


def test_without_a_job_the_report_is_printed_all_the_same(mixed: Path) -> None:
    done = call("report", "mixed", "--github", cwd=mixed, env={"GITHUB_STEP_SUMMARY": ""})
    assert done.code == 0
    assert done.err == "warning: --github: GITHUB_STEP_SUMMARY is not set, so there is no summary to append to\n"


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--format", "junt"], "did you mean 'junit'?"),
        (["--at-least", "0.5"], "--format junit"),
        (["--output", "x.txt"], "--format: markdown (.md)"),
        (["--format", "junit", "--output", "nowhere/x.xml"], "cannot be written"),
    ],
)
def test_a_report_that_cannot_be_made_is_refused(mixed: Path, options: list[str], named: str) -> None:
    before = snapshot(mixed)
    done = call("report", "mixed", *options, cwd=mixed)
    assert (done.code, done.out) == (2, "")
    assert named in done.err
    assert snapshot(mixed) == before


def test_json_goes_to_a_file_as_it_goes_to_standard_output(mixed: Path, tmp_path: Path) -> None:
    assert call("report", "mixed", "--json", "--output", tmp_path / "r.json", cwd=mixed).code == 0
    assert (tmp_path / "r.json").read_text() == call("report", "mixed", "--format", "json", cwd=mixed).out


TEST = """
import holdfast

def run(**fields):
    data = [{{"id": str(i), "q": str(i), "target": "1"}} for i in range(10)]
    models = [{{"name": "m", "provider": "mock", **fields}}]
    task = holdfast.Task("t", data=data, prompt="{{q}}", scorers=["exact_match", "includes"], sample_retries=0)
    return holdfast.run(task, models=models, store="runs", id="r", fail_on_error=99)

def test_it(assert_score):
    {body}
"""


def tried(pytester: pytest.Pytester, body: str) -> pytest.RunResult:
    pytester.makepyfile(TEST.format(body=body))
    return pytester.runpytest_subprocess("-p", "no:xdist")


def test_a_score_that_is_high_enough_passes(pytester: pytest.Pytester) -> None:
    tried(pytester, "assert_score(run(options={'reply': '1'}), at_least=1)").assert_outcomes(passed=1)


def test_a_score_that_is_too_low_fails_and_tells_all(pytester: pytest.Pytester) -> None:
    result = tried(pytester, "assert_score(run(), scorer='exact_match', at_least=0.5, confidence=0.9)")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "default/r does not meet the standard",
            "t / m / exact_match: mean 0.1000, wanted at least 0.5 (90% interval 0.00?? .. 0.3???, n 10)",
            "  9 answers below it:",
            "    t/m/0/1",
            "    t/m/2/1",
            "look at them with: holdfast show r --failed or --wrong*",
        ]
    )
    assert "assert_score(" not in result.stdout.str()  # no traceback through the plugin
    assert "includes" not in result.stdout.str()


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("assert_score(run(options={'reply': '1'}), at_least=0.9, certain=True)", "*certainly at least 0.9*"),
        pytest.param(
            "assert_score(run(options={'reply': '1'}), scorer='exact')",
            "*has no scorer 'exact'; it has exact_match*",
            marks=pytest.mark.long,
        ),
        (
            "assert_score(run(options={'reply': '1', 'failures': [{'kind': 'auth', 'every': 3}]}))",
            "*without a score:",
        ),
        pytest.param(
            "assert_score(run(), at_least=0.15)",
            "*the interval holds 0.15: more samples would tell",
            marks=pytest.mark.long,
        ),
    ],
)
def test_what_cannot_be_vouched_for_fails(pytester: pytest.Pytester, body: str, told: str) -> None:
    result = tried(pytester, body)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([told])


def test_failures_may_be_allowed_and_runs_named_by_id(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", "runs")
    failing = "{'reply': '1', 'failures': [{'kind': 'auth', 'every': 3}]}"
    body = f"run(options={failing}); assert_score('latest', at_least=0.6, failed_max=9)"
    tried(pytester, body).assert_outcomes(passed=1)
    result = tried(pytester, body.replace("0.6", "0.9"))
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*reaches 0.9, but perhaps not with the * missing scores, which count as wrong*"])


def test_pytest_starts_without_the_rest_of_holdfast(tmp_path: Path) -> None:
    (tmp_path / "test_x.py").write_text(
        "import sys\ndef test_x():\n"
        "    assert 'holdfast.pytest_plugin' in sys.modules\n"
        "    assert not {'holdfast.api', 'msgspec', 'aiohttp', 'numpy'} & set(sys.modules)\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
