"""How a benchmark tells what it found: a table for people, JSON for programs, and a verdict on each target."""

import importlib
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import xxhash

import holdfast
from bench.measure import RESULTS


def _digest_source() -> str:
    """Which code is measured: a digest of every source file of the package that was imported."""
    root = Path(holdfast.__file__).parent
    digest = xxhash.xxh3_64()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


_SOURCE_AT_START = _digest_source()


class Verdict(msgspec.Struct, frozen=True):
    """One target: what was asked, what was measured."""

    question: str
    measured: float
    target: str
    met: bool


def at_least(question: str, measured: float, least: float) -> Verdict:
    return Verdict(question, measured, f">= {least:g}", measured >= least)


def at_most(question: str, measured: float, most: float) -> Verdict:
    return Verdict(question, measured, f"<= {most:g}", measured <= most)


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as needed; the first is text, the others numbers."""
    widths = [max(len(row[column]) for row in (header, *rows)) for column in range(len(header))]
    print(f"\n{title}")
    for row in (header, ["-" * width for width in widths], *rows):
        cells = [cell.rjust(width) for cell, width in zip(row, widths, strict=True)]
        cells[0] = row[0].ljust(widths[0])
        print("  " + "  ".join(cells))


def print_verdicts(verdicts: Sequence[Verdict]) -> None:
    rows = [
        [each.question, f"{each.measured:,.2f}", each.target, "met" if each.met else "NOT MET"] for each in verdicts
    ]
    print_table("Targets", ["question", "measured", "target", ""], rows)


def save(name: str, figures: object, verdicts: Sequence[Verdict]) -> None:
    """Write bench/results/<name>.json: the figures, the verdicts, and on what they were measured.

    Child processes import the code anew, so figures taken while it was edited may mix two versions: that is said.
    """
    RESULTS.mkdir(exist_ok=True)
    changed = _digest_source() != _SOURCE_AT_START
    if changed:
        print("\n  WARNING: the source changed while it was measured; these figures may mix versions. Run again.")
    source = {"folder": os.path.dirname(holdfast.__file__), "digest": _SOURCE_AT_START, "changed_meanwhile": changed}
    machine = {"python": sys.version.split()[0], "system": platform.platform(), "cores": os.cpu_count()}
    document = {"bench": name, "machine": machine, "source": source, "figures": figures, "verdicts": list(verdicts)}
    path = RESULTS / f"{name}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")
    print(f"\n  {path}")


def run_benchmark(name: str) -> list[Verdict]:
    """Run one benchmark in this process."""
    found: list[Verdict] = importlib.import_module(f"bench.{name}").main()
    return found
