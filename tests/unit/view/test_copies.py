"""Static copies: which pages, columns and evaluation they have."""

import base64
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.errors import UsageError
from holdfast.view.bundle import write_bundle
from holdfast.view.bundle.rows import RowChoices, make_rows
from holdfast.view.sources import Sources
from tests.unit.view.listed_runs import MODELS, SPEC, ListedRun, exported

NEWER = "evaluation-2"


@pytest.fixture
def sources(tmp_path: Path) -> Iterator[Sources]:
    """A run with two evaluations: every answer is right in the first, and has another score in the second."""
    run = ListedRun(tmp_path, 2, {**SPEC, "models": [{"name": name, "provider": "mock"} for name in MODELS]})
    run.append([run.finished(o, "four") for o in range(run.count)])
    run.append([run.score(o, "right", True, last=True) for o in range(run.count)])
    run.append([run.scoring(NEWER)])
    run.append([run.score(o, "grade", 7, NEWER, last=True) for o in range(run.count)])
    opened = Sources([], str(run.store), frozen=True)
    yield opened
    opened.close()


def unpack(path: Path) -> Any:
    (packed,) = re.findall(r'push\("(.*)"\)', path.read_text())
    return msgspec.json.decode(zlib.decompress(base64.b64decode(packed)))


def test_a_copy_has_no_page_that_needs_a_choice_of_runs(sources: Sources, tmp_path: Path) -> None:
    write_bundle(sources, str(tmp_path / "copy"))
    assert not (tmp_path / "copy" / "compare.html").exists()
    assert (tmp_path / "copy" / "runs" / "e-r" / "compare.html").exists(), "models of one run need no choice"
    home = (tmp_path / "copy" / "index.html").read_text()
    assert "Leaderboard</a>" in home
    assert "Compare</a>" not in home


def test_the_list_shows_targets_and_tells_repeats_apart(sources: Sources) -> None:
    rows = list(make_rows(exported(sources), []))
    both, first = RowChoices.of([]), RowChoices.of([])
    for row in rows:
        both.add(row)
        if row.repeat == 1:
            first.add(row)
    assert {"sample", "repeat", "target"} <= {*both.shown}
    assert "repeat" not in first.shown


@pytest.mark.parametrize(
    ("evaluation", "shown", "other"), [("", NEWER, "evaluation-1"), ("evaluation-1", "evaluation-1", NEWER)]
)
def test_a_copy_has_one_evaluation_and_names_it_on_every_page_with_scores(
    sources: Sources, tmp_path: Path, evaluation: str, shown: str, other: str
) -> None:
    write_bundle(sources, str(tmp_path / "copy"), evaluation=evaluation)
    folder = tmp_path / "copy" / "runs" / "e-r"
    (_, sample, _), *_ = unpack(folder / "samples-0000.js").values()
    for text in ((folder / "index.html").read_text(), (folder / "samples.html").read_text(), sample[0]):
        assert f"Scores of the evaluation {shown} (" in text
        assert "holdfast view r --bundle DIR --evaluation ID" in text
        assert f"with one of: {other} (" in text
    scorers = "[&quot;grade&quot;]" if shown == NEWER else "[&quot;right&quot;]"
    assert f'data-scorers="{scorers}"' in (folder / "samples.html").read_text()
    assert (tmp_path / "copy" / "leaderboard.html").exists() == (not evaluation), "it has the newest evaluation"


def test_a_copy_of_an_evaluation_that_a_run_lacks_is_refused(sources: Sources, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no evaluation 'x'"):
        write_bundle(sources, str(tmp_path / "copy"), evaluation="x")
    assert not (tmp_path / "copy").exists()
