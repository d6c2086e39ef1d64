"""Elsewhere: `replay`, `demo`."""

from typing import Annotated

import typer

from holdfast.cli.app import OtherSpec, RunName, Store, Trust


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


def demo(
    keep: Annotated[bool, typer.Option(help="Keep the demo's folder.")] = False,
    samples: Annotated[int, typer.Option(min=20, max=20_000, help="How many samples.")] = 300,
) -> None:
    """Run a bundled task, kill it, and run it again."""
    from holdfast.cli.commands.demo import run_demo

    raise typer.Exit(run_demo(samples, keep))
