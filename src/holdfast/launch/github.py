"""GitHub Actions: a workflow with one job per shard, and a last one that joins them.

The machines share nothing: each shard is an artefact, stored also when its job fails. Running failed jobs again
downloads the artefact of the earlier attempt, so that saved responses are not paid for again.
"""

import os
import re
import shlex
from typing import Any

from holdfast.errors import UsageError
from holdfast.journal import folder_name
from holdfast.launch.job import LaunchJob, as_file, find_repository, job_name
from holdfast.launch.yaml_text import write_yaml
from holdfast.version import __version__

_JOBS_MAX = 256
_PYTHON = "3.12"
_SHARD = "${{ matrix.shard }}"
_TAR = f"shard-{_SHARD}.tar"


def write_github(job: LaunchJob) -> str:
    """The text of a file in `.github/workflows`."""
    if job.shards > _JOBS_MAX:
        raise UsageError(f"launch github: a matrix has at most {_JOBS_MAX} jobs; use fewer --shards")
    name = job_name(job)
    folder, spec_name = _places(job)
    workflow = {
        "name": _literal(f"holdfast {job.place.run_id}"),
        "on": {"workflow_dispatch": {}},
        "permissions": {"contents": "read"},
        "defaults": {"run": {"shell": "bash", "working-directory": _literal(folder)}},
        "jobs": {"shard": _shard_job(job, name, spec_name), "merge": _merge_job(job, name, folder)},
    }
    comments = [job.title, "Save it as .github/workflows/NAME.yaml; start it on the page Actions."]
    secrets = [each for each, is_needed in job.variables().items() if is_needed]
    if secrets and all(each.isidentifier() for each in secrets):
        comments.append(f"Needs secrets of the repository: {', '.join(secrets)}")
    return write_yaml(comments, workflow)


def _shard_job(job: LaunchJob, name: str, spec_name: str) -> dict[str, Any]:
    # Without `exec` the shell would get the signal of a cancelled job, not the worker.
    command = f"exec {_literal(shlex.join(['holdfast', *job.run_words(spec_name, 'runs')]))}"
    variables = [each for each in job.variables() if each.isidentifier()]
    artefact = f"{name}-{_SHARD}"
    return {
        "runs-on": "ubuntu-latest",
        "strategy": {
            "fail-fast": False,
            "max-parallel": min(job.workers, job.shards),
            "matrix": {"shard": list(range(1, job.shards + 1))},
        },
        "env": {each: f"${{{{ secrets.{each} }}}}" for each in variables},
        "steps": [
            *_setup_steps(job),
            {
                "name": "Fetch what an earlier attempt has saved",
                "uses": "actions/download-artifact@v4",
                "continue-on-error": True,
                "with": {"name": artefact, "path": "${{ runner.temp }}/earlier"},
            },
            {
                "name": "Unpack it",
                "run": f'mkdir -p runs\nif [ -f "$RUNNER_TEMP/earlier/{_TAR}" ]; then\n'
                f'  tar -xf "$RUNNER_TEMP/earlier/{_TAR}" -C runs\nfi\n',
            },
            {"name": "Run the shard", "run": f"{_unset_empty(variables)}{command} --shard {_SHARD}/{job.shards}\n"},
            # A tar file keeps permissions and names that artefacts do not allow.
            {"name": "Pack the store", "if": "always()", "run": f'tar -cf "$RUNNER_TEMP/{_TAR}" -C runs .'},
            {
                "name": "Keep the store",
                "if": "always()",
                "uses": "actions/upload-artifact@v4",
                "with": {"name": artefact, "path": f"${{{{ runner.temp }}}}/{_TAR}", "overwrite": True},
            },
        ],
    }


def _merge_job(job: LaunchJob, name: str, folder: str) -> dict[str, Any]:
    run_id = _literal(shlex.quote(job.place.run_id))
    part = _literal(shlex.quote(f"{folder_name(job.place.experiment)}/{folder_name(job.place.run_id)}"))
    unpack = (
        # Whether artefacts get folders of their own depends on the version of the action and on their number.
        'shopt -s nullglob\nfor file in "$RUNNER_TEMP"/shards/{,*/}shard-*.tar; do\n'
        '  part="$RUNNER_TEMP/parts/$(basename "$file" .tar)"\n'
        '  mkdir -p "$part"\n  tar -xf "$file" -C "$part"\ndone\n'
    )
    return {
        "runs-on": "ubuntu-latest",
        "needs": "shard",
        "if": "always()",
        "steps": [
            *_setup_steps(job),
            {
                "name": "Fetch all shards",
                "uses": "actions/download-artifact@v4",
                "with": {"pattern": f"{name}-*", "path": "${{ runner.temp }}/shards"},
            },
            {"name": "Unpack them", "run": unpack},
            {
                "name": "Join them",
                "run": f'holdfast merge "$RUNNER_TEMP"/parts/*/{part} --id {run_id} --store runs\n'
                f"holdfast report {run_id} --store runs --github\n",
            },
            {
                "name": "Pack the run",
                "if": "always()",
                "run": 'tar -cf "$RUNNER_TEMP/runs.tar" -C runs .',
            },
            {
                "name": "Keep the run",
                "if": "always()",
                "uses": "actions/upload-artifact@v4",
                "with": {"name": name, "path": "${{ runner.temp }}/runs.tar", "overwrite": True},
            },
        ],
    }


def _setup_steps(job: LaunchJob) -> list[dict[str, Any]]:
    extras = ["hub"] if any(task.dataset.hub for task in job.spec.tasks) else []
    extras += ["mirror"] if job.spec.mirror is not None else []
    # All jobs must have the same version, also those that are run again later.
    package = f"holdfast[{','.join(extras)}]=={__version__}" if extras else f"holdfast=={__version__}"
    return [
        {"uses": "actions/checkout@v4"},
        {"uses": "actions/setup-python@v5", "with": {"python-version": _PYTHON}},
        {"name": "Install Holdfast", "run": f"pip install {shlex.quote(package)}"},
    ]


def _places(job: LaunchJob) -> tuple[str, str]:
    """The folder to work in, relative to the repository, and the spec, relative to this folder."""
    top = find_repository(job.folder)
    folder = os.path.relpath(job.folder, top)
    if not job.given.where:
        return folder, job.spec_name
    path = os.path.abspath(job.given.where)
    if os.path.relpath(path, top).startswith(os.pardir):
        raise UsageError(f"launch github: {path} is outside of the repository {top}; move it there")
    return folder, as_file(os.path.relpath(path, job.folder))


def _unset_empty(variables: list[str]) -> str:
    """A secret that does not exist is an empty variable, which is not the same as none: for AWS it is a wrong token."""
    if not variables:
        return ""
    return f'for name in {" ".join(variables)}; do [ -n "${{!name}}" ] || unset "$name"; done\n'


def _literal(text: str) -> str:
    """A text in which GitHub evaluates no expression."""
    return re.sub(r"\$\{\{", "${{ '${{' }}", text)
