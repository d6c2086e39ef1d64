"""Elsewhere: `launch`, `merge`, `replay`, `demo`."""

import contextlib
from typing import Annotated

import typer

from holdfast.cli.app import OtherSpec, RunName, Sets, Store, Trust


def _complete_launcher(incomplete: str) -> list[tuple[str, str]]:
    with contextlib.suppress(Exception):  # a broken package of the user must not disturb the shell
        from holdfast.launch import LAUNCHERS

        return [(name, each.summary) for name, each in LAUNCHERS.items() if name.startswith(incomplete)]
    return []


def launch(
    where: Annotated[
        str,
        typer.Argument(
            metavar="slurm|kubernetes|github|local",
            help="What starts the workers.",
            autocompletion=_complete_launcher,
            show_default=False,
        ),
    ],
    spec: Annotated[str, typer.Argument(metavar="SPEC", help="A spec, a YAML file; or a benchmark, such as gsm8k.")],
    run_id: Annotated[str, typer.Option("--id", help="The run's id. If the run exists, continue it.")],
    shards: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="The number of parts of the run. Default: 4 per worker.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=1, metavar="W", help="How many workers. Default: one per shard; local: one per core."),
    ] = None,
    store: Store = None,
    sets: Sets = None,
    limit: Annotated[int | None, typer.Option(help="Only the first N samples of each task.")] = None,
    task: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only the task with this name. Repeatable.")
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Only this model; for a benchmark: PROVIDER/MODEL. Repeatable."),
    ] = None,
    output: Annotated[
        str, typer.Option(metavar="FILE", help="Write the job file here. Default: standard output.")
    ] = "",
    submit: Annotated[
        bool, typer.Option("--submit", help="slurm, kubernetes: hand the job file to sbatch or kubectl.")
    ] = False,
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="OPTION", help="slurm: an option of sbatch: --option=--partition=gpu. Repeatable."),
    ] = None,
    this_host: Annotated[
        bool, typer.Option("--this-host", help="slurm: all nodes are this machine, so its disk is shared.")
    ] = False,
    image: Annotated[str, typer.Option(help="kubernetes: the container image, with Holdfast installed.")] = "",
    secret: Annotated[
        str, typer.Option(metavar="NAME", help="kubernetes: the Secret with the API keys. Default: holdfast-keys.")
    ] = "",
    folder: Annotated[
        str, typer.Option(metavar="DIR", help="kubernetes: spec and data are in this folder of the image.")
    ] = "",
) -> None:
    """Run on many machines, or all cores of this one.

    Divides a run into shards (`run --shards`) and starts workers for them. `local` starts worker processes here, with
    one progress display, and prints the report. The others print a complete job file: `slurm` an array job that is
    requeued after preemption and before its time limit; `kubernetes` an Indexed Job, for a spec with a mirror; `github`
    a workflow with one job per shard and one that merges them. --submit hands the file to sbatch or kubectl.

    After any interruption, the same command or job continues the run. Exit codes are those of `run`.
    """
    from holdfast.cli.commands.elsewhere.launch import LaunchRequest, launch_run
    from holdfast.launch import ClusterOptions
    from holdfast.spec import Selection

    cluster = ClusterOptions(tuple(option or ()), this_host, image, secret, folder)
    selection = Selection(limit, (), task or (), model or ())
    request = LaunchRequest(
        where, spec, run_id, store, shards, workers, tuple(sets or ()), selection, output, submit, cluster
    )
    raise typer.Exit(launch_run(request))


def replay(
    name: RunName,
    key: Annotated[str, typer.Argument(metavar="KEY", help="task/model/sample/repeat.")],
    spec: OtherSpec = None,
    pdb: Annotated[
        bool, typer.Option("--pdb", help="Debug it: stop at the solver's first line, and where it raises.")
    ] = False,
    store: Store = None,
    trust: Trust = False,
) -> None:
    """Run one sample's code again on its recorded steps.

    No request is sent.
    """
    from holdfast.cli.commands.check import replay_sample
    from holdfast.runs import Overrides

    raise typer.Exit(replay_sample(name, key, spec, store, Overrides(trust=trust), pdb))


def merge(
    names: Annotated[list[str], typer.Argument(metavar="RUN…", help="The runs: ids or folders.")],
    run_id: Annotated[str, typer.Option("--id", help="The id of the merged run.")],
    store: Store = None,
) -> None:
    """Join runs of the same plan that were made apart.

    For shards that were run without a common store (`run --shard 3/8` on two laptops, or in a CI matrix with
    artefacts), and for runs of which each has answered a part of the samples. If several have answered a sample, the
    answer of the first one named counts; the costs of all are counted. Exit 3 if they are not of one plan.
    """
    from holdfast.cli.commands.maintenance import merge_runs

    raise typer.Exit(merge_runs(names, run_id, store))


def demo(
    keep: Annotated[bool, typer.Option(help="Keep the demo's folder.")] = False,
    samples: Annotated[int, typer.Option(min=20, max=20_000, help="How many samples.")] = 300,
) -> None:
    """Run a bundled task, kill it, and run it again."""
    from holdfast.cli.commands.demo import run_demo

    raise typer.Exit(run_demo(samples, keep))
