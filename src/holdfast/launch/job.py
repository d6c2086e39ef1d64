"""What a job file is made from: the command that each worker runs, and what this command needs on another machine.

Names of runs, specs and folders may hold any character. Each launcher quotes them for the language of its file; names
of jobs, which schedulers restrict to a few characters, are made by `job_name`.
"""

import glob
import hashlib
import math
import os
import re
from collections.abc import Iterator

import msgspec

from holdfast.datasets import is_url
from holdfast.errors import UsageError
from holdfast.printable import one_line
from holdfast.runs import Given, RunLocation, references_of
from holdfast.spec import (
    PROVIDERS,
    Spec,
    key_variables,
    mentioned_variables,
    placed_models,
    read_spec,
    spec_mapping,
    variables_in,
)

_NAME_MAX = 40
_STOP_SECONDS = 30
"""For the last records, and the last upload to a mirror, after requests in flight have ended."""


class ClusterOptions(msgspec.Struct, frozen=True):
    """What only some launchers use, as options of the command."""

    scheduler_options: tuple[str, ...] = ()
    """Slurm: more `#SBATCH` options."""
    this_host: bool = False
    """All workers run on one machine, so that a store on its own disk is shared by all of them."""
    image: str = ""
    secret: str = ""
    image_folder: str = ""
    """Kubernetes: the folder of the image that holds spec, data and code; empty: they become a ConfigMap."""


class LaunchJob(msgspec.Struct, frozen=True):
    """The workers of one run, whatever starts them."""

    given: Given
    place: RunLocation
    spec_name: str
    """As it was typed: a file, or a benchmark."""
    options: tuple[str, ...]
    """Of `holdfast run`, that choose or change the spec."""
    shards: int
    workers: int
    folder: str
    """The current folder, where the command was typed."""
    cluster: ClusterOptions = ClusterOptions()

    @property
    def spec(self) -> Spec:
        return self.given.spec

    @property
    def stop_seconds(self) -> int:
        """How long a worker may take to end after SIGTERM."""
        return math.ceil(self.spec.grace_seconds) + _STOP_SECONDS

    @property
    def title(self) -> str:
        """One line for a comment: no name can end it early."""
        what = f"{self.workers} workers for {self.shards} shards of the run {self.place.run_id} of {self.spec_name}"
        return re.sub(r"[^\x20-\x7e]", "?", one_line(what))

    def run_words(self, spec_name: str = "", store: str = "") -> list[str]:
        """The arguments of `holdfast` for one worker, without its shards."""
        stored = ["--store", store] if store else []
        return ["run", spec_name or self.spec_name, "--id", self.place.run_id, *stored, *self.options]

    def variables(self) -> dict[str, bool]:
        """The environment variables that the run reads, by name; True if it cannot start without them."""
        raw = read_spec(self.given.where).raw if self.given.where else spec_mapping(self.spec)
        sets = [value for option, value in zip(self.options, self.options[1:], strict=False) if option == "--set"]
        # A provider's own variable is left out if its models use others: no worker gets a key that it does not need.
        defaults = {name for provider in PROVIDERS.values() for name in provider.key_variables}
        unused = defaults - {name for _, name in variables_in([raw, sets])}
        found = dict.fromkeys(sorted(mentioned_variables(raw, sets) - unused), False)
        for model in placed_models(self.spec).values():
            keys = key_variables(model)
            found |= {name: len(keys) == 1 for name in keys if not found.get(name)}
        return found

    def files(self) -> dict[str, str]:
        """The files that the run reads, by their paths relative to the folder of the spec: spec, data, own modules.

        UsageError for one outside of that folder.
        """
        if not self.given.where:
            return {}
        base = os.path.dirname(os.path.abspath(self.given.where))
        found = {}
        for path in dict.fromkeys(map(os.path.abspath, self._local_files(base))):
            name = os.path.relpath(path, base)
            if name.startswith(os.pardir):
                raise UsageError(f"{path} is outside of the folder of the spec, {base}: move it there")
            found[name] = path
        return found

    def _local_files(self, base: str) -> Iterator[str]:
        yield self.given.where
        yield from self.given.included
        for task in self.spec.tasks:
            for pattern in task.dataset.paths:
                if not is_url(pattern):
                    yield from [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
        for reference in references_of(self.spec):
            module = os.path.join(base, reference.partition(":")[0].partition(".")[0])
            if os.path.isfile(f"{module}.py"):
                yield f"{module}.py"
            yield from sorted(glob.glob(os.path.join(glob.escape(module), "**", "*.py"), recursive=True))


def job_name(job: LaunchJob) -> str:
    """A name that every scheduler accepts: lower-case letters, digits and hyphens, at most 57 characters.

    A digest keeps runs apart whose names differ only in characters that are left out.
    """
    full = f"{job.place.experiment}/{job.place.run_id}"
    plain = re.sub(r"[^a-z0-9]+", "-", job.place.run_id.lower())[:_NAME_MAX].strip("-")
    return "-".join(filter(None, ["holdfast", plain, hashlib.sha256(full.encode()).hexdigest()[:6]]))


def as_file(path: str) -> str:
    """A relative path as `run` reads it: without a folder or a suffix it would name a benchmark."""
    return path if os.sep in path or os.path.splitext(path)[1] else os.path.join(os.curdir, path)


def find_repository(folder: str) -> str:
    """The folder of the Git repository that a folder is in; the folder itself if it is in none."""
    above = os.path.abspath(folder)
    while not os.path.exists(os.path.join(above, ".git")):
        if os.path.dirname(above) == above:
            return os.path.abspath(folder)
        above = os.path.dirname(above)
    return above
