"""Jobs of small specs, with names that break careless quoting."""

from pathlib import Path
from typing import Any

from holdfast.launch import ClusterOptions, LaunchJob
from holdfast.runs import Overrides, load_given, new_run_location
from tests.e2e.commands import write_spec

HOSTILE = 'it\'s "x" $(touch pwned) `touch pwned` $HOME ${{ secrets.X }} # %s \\ é: {}[]&*!|>,?'
"""A run id. It has no line break: ids refuse control characters."""
HOSTILE_FOLDER = "a b'c\"d$(touch pwned)\n#SBATCH --bad\n- x: ${{ y }}"
MIRROR = {"url": "s3://bucket/evals"}


def job_in(
    folder: Path,
    run_id: str = "nightly",
    sets: tuple[str, ...] = (),
    cluster: ClusterOptions = ClusterOptions(this_host=True, image="registry/holdfast:1"),  # noqa: B008 - frozen
    **changes: Any,
) -> LaunchJob:
    """Two workers, four shards."""
    folder.mkdir(parents=True, exist_ok=True)
    spec = write_spec(folder, **changes)
    given = load_given(str(spec), Overrides(sets))
    place = new_run_location(given, str(folder / "runs"), run_id)
    options = tuple(word for each in sets for word in ("--set", each))
    return LaunchJob(given, place, str(spec), options, 4, 2, str(folder), cluster)
