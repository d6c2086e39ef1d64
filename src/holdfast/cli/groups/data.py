"""Data in and out: `benchmarks`, `export`, `init`, `info`, `schema`, `check`."""

import contextlib
from typing import Annotated

import typer

from holdfast.cli.app import (
    Columns,
    Evaluation,
    Events,
    Json,
    RunToRead,
    Sets,
    Specs,
    StoreToRead,
    complete_benchmark,
    complete_format,
)


def _complete_topic(incomplete: str) -> list[tuple[str, str]]:
    """The names and kinds that `info` describes."""
    with contextlib.suppress(Exception):  # a broken package of the user must not disturb the shell
        from holdfast.cli.commands.info import KINDS, topics

        named = dict.fromkeys(KINDS, "a kind of names")
        for each in topics():
            named.setdefault(each.name, each.kind)
        return [each for each in named.items() if each[0].startswith(incomplete)]
    return []


def benchmarks(
    action: Annotated[
        str | None, typer.Argument(metavar="[show|check]", help="show NAME: its card. check [NAME]: test cards.")
    ] = None,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="A benchmark.", autocompletion=complete_benchmark)
    ] = None,
    online: Annotated[bool, typer.Option("--online", help="With check: download the data and compare it.")] = False,
    as_json: Json = False,
) -> None:
    """List benchmarks, show the card of one, or check them.

    `show NAME` prints its source, licence, metric, and what its results can be compared with; the exact prompt of the
    first sample; and its task as YAML, to copy into a spec. `run NAME --model openai/gpt-x` runs it.

    `check` tests that benchmarks can run on this machine; with --online also whether columns, number of samples and
    first row of the data are those of the card. Exit 2 for a difference.
    """
    from holdfast.cli.commands.benchmarks import (
        check_benchmarks,
        print_benchmark,
        print_benchmarks,
        refuse_unknown_action,
    )

    if action is None:
        print_benchmarks(as_json)
        return
    refuse_unknown_action(action, name)
    if action == "check":
        raise typer.Exit(check_benchmarks(name, online, as_json))
    print_benchmark(name or "", as_json)


def export(
    name: RunToRead,
    format: Annotated[
        str,
        typer.Option(
            help="jsonl, csv or parquet. Default: that of the file's suffix, else jsonl.",
            autocompletion=complete_format,
        ),
    ] = "",
    output: Annotated[str | None, typer.Option(help="The file to write. Default: standard output.")] = None,
    events: Events = False,
    failed: Annotated[bool, typer.Option("--failed", help="Only the samples that failed.")] = False,
    wrong: Annotated[bool, typer.Option("--wrong", help="Only the answers with a score of false or 0.")] = False,
    kind: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="Only samples with this kind of failure. Repeatable.")
    ] = None,
    grep: Annotated[str, typer.Option(help="Only the samples with this pattern in key, output or error.")] = "",
    task: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only the samples of this task. Repeatable.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Only the samples of this model. Repeatable.")
    ] = None,
    anomaly: Annotated[
        list[str] | None, typer.Option(metavar="KIND", help="Only the answers with this anomaly. Repeatable.")
    ] = None,
    columns: Columns = "",
    evaluation: Evaluation = "",
    store: StoreToRead = None,
) -> None:
    """Write answers and scores as JSONL, CSV or Parquet.

    One line for each planned or chosen key, in plan order. Fields: key, task, model, sample_id, repeat; status
    (finished, failed or unfinished); output, error; attempt (the number of the attempt that counts); input_tokens,
    output_tokens, seconds (of that attempt, replayed steps included); scores; reasons (the scorers' explanations).

    JSONL: a score is a value, null if the scorer gave none, or {"failure": {"message": ...}} if the scorer failed.
    finish_reason and tool_calls come from the model. scores_edited has the history of scores that were set by hand.
    group is the row's value in the column that dataset.group names. Last come input (the row's input column, else the
    prompt), target, prompt (the rendered last user message) and row (the columns that --columns chose). They are null
    with record_data: false.

    CSV and Parquet: each scorer has a column, score_errors has the scorers that failed and why, and edited the scores
    that were set by hand and their authors. Last come input, target and prompt, then a column row.NAME for each column
    that --columns chose. A scorer with the name of another column gets the prefix "score.".

    CSV is for spreadsheets: a text that could be a formula (it begins with =, +, - or @, and is no number) gets a
    leading quote. Parquet has typed columns, and needs --output and holdfast[parquet].

    --events adds two fields to each line of JSONL: events, the records of the key's steps (docs/format.md), and
    messages, the last conversation with the model. It streams, whatever the size of the run.
    """
    from holdfast.cli.commands.show import ExportOptions, export_run
    from holdfast.report import KeyFilter, parse_columns

    chosen = KeyFilter(
        failed, wrong, tuple(kind or ()), grep, "", tuple(task or ()), tuple(model or ()), tuple(anomaly or ())
    )
    export_run(
        name, ExportOptions(format, output, events, evaluation, parse_columns(columns.split(","))), store, chosen
    )


def init(
    folder: Annotated[str, typer.Argument(help="Where to put the files.")] = ".",
    benchmark: Annotated[
        str,
        typer.Option(metavar="NAME", help="Write an editable copy of a benchmark.", autocompletion=complete_benchmark),
    ] = "",
) -> None:
    """Write a small working example: a spec and its data.

    With --benchmark: a spec with a copy of the benchmark's task, to change it.
    """
    from holdfast.cli.commands.init import write_benchmark, write_example

    if benchmark:
        write_benchmark(folder, benchmark)
    else:
        write_example(folder)


def info(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A name, or a kind of names: scorers. Default: list all names.",
            autocompletion=_complete_topic,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List what a spec may name, and where things are kept.

    Lists providers, scorers, extractors, solvers, tools, formats, benchmarks, extras and commands, and those that other
    installed packages offer. With the name of one: what it does, its arguments, and an example. Exit 2 for an unknown
    name.
    """
    from holdfast.cli.commands.info import print_info

    raise typer.Exit(print_info(name, as_json))


def schema() -> None:
    """Print the JSON Schema of a spec, for editors."""
    from holdfast.cli.commands.init import print_schema

    print_schema()


def check(
    specs: Specs,
    sets: Sets = None,
    servers: Annotated[bool, typer.Option("--servers", help="Also request the list of models of each server.")] = False,
    as_json: Json = False,
) -> None:
    """Check specs and their data without running them.

    Checks data, columns, prompts, solvers, scorers, providers and key variables, and calls no model. Exit 2 for errors;
    warnings do not change the exit code. With --servers each server gets one request for its list of models: exit 2 if
    it does not respond or rejects the key, a warning if it does not list the model.
    """
    from holdfast.cli.commands.check import check_specs
    from holdfast.runs import Overrides

    raise typer.Exit(check_specs(specs, Overrides(sets or []), servers, as_json))
