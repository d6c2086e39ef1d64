"""What does it cost to bring a run back whose machine is gone?

Runs of 10,000 and 100,000 one-turn samples, mirrored into a folder as a kill leaves them (the last segment in chunks,
the others sealed); 10,000 also into S3 (moto on the loopback). `holdfast recover` makes a new folder of each. Beside it
a plain download: a program that lists the same objects, gets them with the same library, writes and syncs them. Peer:
`inspect log recover` of an evaluation that was killed when its last sample had begun, if HOLDFAST_INSPECT names the
command. Targets: under 200 MB, and less CPU for a sample than the peer.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import msgspec
import yaml

from bench.inspect_peer import VARIABLE, crashed_log, environment, inspect_command, samples_in
from bench.measure import Spread, scratch, take_turns
from bench.outcome import Verdict, at_least, at_most, print_table, print_verdicts, save
from bench.processes import Taken, taken_by
from bench.stores import moto_server
from holdfast.journal import Reader, journal_folder
from holdfast.journal.disk import OS_DISK
from holdfast.journal.mirror.uploader import MirrorUploader, UploadSettings
from holdfast.journal.object_store import open_objects
from holdfast.journal.paths import segment_path
from holdfast.journal.scan import open_content
from holdfast.records import Fence

FEW = 10_000
MANY = 100_000
ROUNDS = 3
_CHUNK_BYTES = 2 << 20
_UPLOAD_SECONDS = 600
_RUN = "x"
_DOWNLOAD = Path(__file__).with_name("child_download.py")


class Case(msgspec.Struct, frozen=True):
    """A mirror to recover from, and what it is reached with."""

    name: str
    url: str
    samples: int
    rounds: int
    env: dict[str, str]


class Found(msgspec.Struct, frozen=True):
    """What one case came to."""

    samples: int
    recover: list[Taken]
    download: list[Taken]

    @property
    def cpu(self) -> float:
        return Spread.of([each.cpu_seconds for each in self.recover]).median

    @property
    def peak_mb(self) -> float:
        return max(each.peak_mb for each in self.recover)


def main() -> list[Verdict]:
    found: dict[str, Found] = {}
    with scratch("recover") as folder, moto_server() as s3:
        few, many = (_make_run(Path(folder, str(count)), count) for count in (FEW, MANY))
        cases = [
            Case(f"{FEW:,}, folder", f"file://{folder}/few", FEW, ROUNDS, {}),
            Case(f"{FEW:,}, S3", f"{s3.bucket('few')}/few", FEW, ROUNDS, s3.env),
            Case(f"{MANY:,}, folder", f"file://{folder}/many", MANY, 1, {}),
        ]
        for case in cases:
            _upload(few if case.samples == FEW else many, case)
            found[case.name] = _measure(case, folder)
    peer = _measure_inspect()
    _print(found, peer)
    verdicts = [at_most(f"recover: peak MB of {name}", each.peak_mb, 200) for name, each in found.items()]
    if peer is not None:
        ours = found[f"{FEW:,}, folder"]
        theirs = peer.recover[0].cpu_seconds / peer.samples
        verdicts.append(at_least("recover: inspect-ai's CPU of a sample, to ours", theirs / (ours.cpu / FEW), 1))
    save("recover", {**found, "inspect-ai": peer}, verdicts)
    return verdicts


def _print(found: dict[str, Found], peer: Found | None) -> None:
    rows = []
    for name, case in found.items():
        rows += [_row(f"{name}: recover", case.recover, case.download), _row("  download", case.download, None)]
    if peer is not None:
        rows.append(_row(f"{peer.samples:,}: inspect-ai's recover", peer.recover, None))
    print_table("bringing a run back", ["samples", "CPU s", "to a download", "wall s", "peak MB"], rows)
    if peer is None:
        print(f"  inspect-ai was not measured: set {VARIABLE} to its command")


def _row(name: str, taken: list[Taken], download: list[Taken] | None) -> list[str]:
    cpu = Spread.of([each.cpu_seconds for each in taken])
    ratio = f"{cpu.median / Spread.of([each.cpu_seconds for each in download]).median:.1f}" if download else ""
    wall = Spread.of([each.wall_seconds for each in taken]).show(1)
    return [name, cpu.show(2), ratio, wall, Spread.of([each.peak_mb for each in taken]).show()]


def _make_run(folder: Path, samples: int) -> str:
    """A run of a mock, and its last segment plain again, as if the process had died before it was sealed."""
    folder.mkdir()
    with (folder / "rows.jsonl").open("wb") as file:
        for number in range(1, samples + 1):
            row = {"id": str(number), "input": f"Say hello, number {number}.", "target": "hello"}
            file.write(msgspec.json.encode(row) + b"\n")
    spec = {
        "experiment": "bench",
        "models": [{"name": "m", "provider": "mock", "max_connections": 256}],
        "tasks": [{"name": "trivial", "dataset": {"path": "rows.jsonl"}, "scorers": ["includes"]}],
        "concurrency": {"samples": 256},
    }
    path = folder / "eval.yaml"
    path.write_text(yaml.safe_dump(spec))
    command = [sys.executable, "-m", "holdfast", "run", str(path), "--id", _RUN, "--store", str(folder / "runs")]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    run = str(folder / "runs" / "bench" / _RUN)
    _unseal_last(journal_folder(run))
    return run


def _unseal_last(journal: str) -> None:
    number = max(int(name.split(".")[0]) for name in os.listdir(journal) if name.endswith(".jsonl.zst"))
    sealed = segment_path(journal, number, sealed=True)
    content = open_content(OS_DISK, sealed)
    try:
        with open(segment_path(journal, number), "wb") as file:
            file.writelines(piece.data for piece in content.pieces(0))
    finally:
        content.close()
    os.unlink(sealed)


def _upload(run: str, case: Case) -> None:
    reader = Reader(journal_folder(run))
    for _ in reader.read():
        pass
    end = reader.cursor
    keeping = UploadSettings(lambda: Fence(end.segment, end.offset, end.n, end.x), chunk_bytes=_CHUNK_BYTES)
    os.environ.update(case.env)
    mirror = MirrorUploader(run, reader.uid, open_objects(f"{case.url}/bench/{_RUN}"), None, keeping)
    mirror.start()
    if not mirror.close(_UPLOAD_SECONDS):
        raise RuntimeError(f"the mirror at {case.url} is not whole")


def _measure(case: Case, folder: str) -> Found:
    url = f"{case.url}/bench/{_RUN}"
    recover = [sys.executable, "-m", "holdfast", "recover", url, "--output"]
    download = [sys.executable, str(_DOWNLOAD), url]

    def taken(command: list[str]) -> Taken:
        place = os.path.join(folder, "new")
        try:
            return taken_by([*command, place], {**os.environ, **case.env}, folder)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    found = take_turns(case.rounds, {"recover": lambda: taken(recover), "download": lambda: taken(download)})
    return Found(case.samples, found["recover"], found["download"])


def _measure_inspect() -> Found | None:
    """Once: as many samples as the smaller of our runs, which takes it minutes."""
    command = inspect_command()
    if not command:
        return None
    with scratch("inspect") as folder:
        log = crashed_log(command, folder, FEW)
        recover = [command, "log", "recover", log, "--output", "recovered.eval"]
        taken = taken_by(recover, environment(folder), folder)
        return Found(samples_in(command, folder, "recovered.eval"), [taken], [])


if __name__ == "__main__":
    print_verdicts(main())
