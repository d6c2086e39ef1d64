"""`gc` removes a run here; its mirror stays, is named, and never brings the run back without being asked to."""

from pathlib import Path

from tests.e2e.commands import call, shown, write_spec


def test_a_removed_run_comes_back_from_its_mirror_only_when_asked_for(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/mirror"
    spec = write_spec(tmp_path, 3, mirror={"url": url})
    command = ("run", spec, "--id", "r")
    assert call(*command, cwd=tmp_path).code == 0
    gone = call("gc", "r", "--yes", cwd=tmp_path)
    assert (gone.code, f"The mirror of r stays: {url}/sums/r" in gone.out) == (0, True), gone.out
    for _ in range(2):
        again = call(*command, cwd=tmp_path)
        assert again.code == 2
        assert "r was removed here on" in again.err
        assert f"holdfast recover {url}/sums/r" in again.err
    assert call("ls", "--json", cwd=tmp_path).json() == []
    back = call("recover", f"{url}/sums/r", "--output", tmp_path / "runs", cwd=tmp_path)
    assert back.code == 0, back.err
    assert call(*command, cwd=tmp_path).code == 0
    assert shown("r", tmp_path / "runs")["finished"] == 3
