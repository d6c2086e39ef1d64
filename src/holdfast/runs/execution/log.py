"""The log of a run: one JSON object a line, with a dotted event name from the list below. For people and machines.

It is no original: nothing is read back from it. It goes to `log.jsonl` in the run's folder, is rotated, and never keeps
a run from working: a log that cannot be written is given up with one warning.
"""

import logging
import logging.handlers
import os
import sys
import time
from io import TextIOWrapper
from typing import Any

import msgspec

from holdfast.files import open_or_create
from holdfast.printable import clean

LOG = "log.jsonl"
_BYTES_MAX = 10 * 1024 * 1024
_KEPT = 3

EVENTS: dict[str, tuple[str, str]] = {
    "run.started": ("info", "a run began"),
    "run.resumed": ("info", "a process goes on with a run"),
    "run.extended": ("info", "keys were added to a run"),
    "run.replanned": ("info", "a model that had given no answer was corrected"),
    "run.completed": ("info", "every key is finished, or failed for good"),
    "run.interrupted": ("warning", "the run was stopped and can be resumed"),
    "run.cancelled": ("warning", "the run was stopped by `holdfast cancel`"),
    "run.failed": ("error", "the run cannot go on; the reason is in the message"),
    "run.shutdown_requested": ("warning", "a signal or `holdfast cancel` asks the run to stop"),
    "run.status_write_failed": ("error", "how the run ended could not be recorded; it counts as interrupted"),
    "run.stalled": ("warning", "nothing moves, or the event loop is blocked; with the code that holds it up"),
    "run.moving_again": ("info", "a run that had stalled moves again"),
    "run.watch_failed": ("warning", "what watches the run met an error; the run is not affected"),
    "run.budget_reached": ("info", "a limit in `limits.run` is reached; what is under way ends, then the run stops"),
    "run.tuned": ("info", "limits of the live run were changed"),
    "cell.stopped": ("error", "a cell's model refuses every request or is gone: the rest of it stays unfinished"),
    "model.waiting": ("warning", "a model's server does not work: it is waited for, with one request now and then"),
    "model.answers": ("info", "a server that was waited for answers again"),
    "model.stopped": ("error", "a model cannot be asked: its key or name is refused, or its server stayed away"),
    "sample.failed": ("warning", "a sample failed for good; with its kind"),
    "sample.save_failed": ("error", "a sample's record could not be saved; it counts as failed"),
    "sample.stalled": ("warning", "a sample neither asks nor returns; with where its code waits"),
    "sample.overdue": ("warning", "a sample is past its time limit and does not end"),
    "model.rests": ("warning", "one of a model's URLs fails and rests; the others go on, and it is tried again"),
    "model.back": ("info", "a model's URL that had rested answers again"),
    "sandbox.cleared": (
        "info",
        "what sandboxes of a dead process of this run had left was ended and removed",
    ),
    "sandbox.unconfined": ("warning", "the machine does not let sandboxed commands be confined as they should be"),
    "sandbox.counted": (
        "info",
        "no control group can be made: the memory of sandboxed commands is counted, and may be exceeded for a moment",
    ),
    "sandbox.lost": ("warning", "the files of a sample's sandbox cannot be restored; the sample begins anew"),
    "sandbox.disk_full": ("error", "no space is left for the files of sandboxes; their samples wait for some"),
    "batch.incomplete": ("warning", "a job of a batch API ended without an answer to each of its requests"),
    "batch.strange_lines": ("warning", "results of a job are unreadable, doubled or of no request; they do not count"),
    "batch.unmarked": ("warning", "the server does not keep a job's metadata, by which it is found after a crash"),
    "batch.failed": ("error", "a job's results cannot be had; the run stops, and the next start tries again"),
    "journal.commit_slow": ("warning", "a commit took longer than a second"),
    "journal.disk_full": ("error", "no space is left; the run waits for some"),
    "journal.poisoned": ("error", "a write or sync failed; the journal goes on in a new segment"),
    "journal.seal_failed": ("warning", "a segment stays uncompressed"),
    "journal.stopped": ("error", "the journal cannot be written any more"),
    "mirror.failed": ("warning", "the mirror's store cannot be written; the run goes on, and it is tried again"),
    "mirror.restored": ("info", "the mirror's store can be written again"),
    "mirror.waiting": ("warning", "the run has ended, and waits a while for its mirror to have all of it"),
    "mirror.behind": ("warning", "the run ended with records that are not in its mirror yet"),
    "mirror.recovered": ("info", "records were brought back from the mirror"),
    "lease.lost": ("error", "another process has taken the run over, or its mirror was removed; this one stops"),
}
"""Every event, its level, and what it means."""


class Logbook:
    """Writes events from any thread."""

    def __init__(self, run: str, run_id: str) -> None:
        self._run_id = run_id
        self._closed = False
        _keep_python_quiet()
        try:
            handler: logging.Handler = _Rotating(
                os.path.join(run, LOG), maxBytes=_BYTES_MAX, backupCount=_KEPT, encoding="utf-8", delay=True
            )
        except OSError:
            handler = logging.NullHandler()
        handler.setFormatter(_Lines())
        self._handler = handler

    def tell(self, event: str, message: str, **facts: Any) -> None:
        level = logging.getLevelNamesMapping()[EVENTS[event][0].upper()]
        extra = {"event": event, "facts": {"run": self._run_id, **facts}}
        record = logging.makeLogRecord({"name": "holdfast", "levelno": level, "msg": message, **extra})
        record.levelname = EVENTS[event][0]
        self._handler.handle(record)
        if self._closed:  # what comes after the end is told all the same, and leaves no file open
            self._handler.close()
        logging.getLogger("holdfast").log(level, "%s: %s", event, clean(message), extra=extra)

    def close(self) -> None:
        self._closed = True
        self._handler.close()


def _keep_python_quiet() -> None:
    """Without any handler Python prints warnings itself; whoever wants to hear of events adds one."""
    logger = logging.getLogger("holdfast")
    if not any(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
        logger.addHandler(logging.NullHandler())


class _Rotating(logging.handlers.RotatingFileHandler):
    def _open(self) -> TextIOWrapper:
        return open(open_or_create(self.baseFilename), "a", encoding=self.encoding)

    def handleError(self, record: logging.LogRecord) -> None:
        """A log that cannot be written is given up, once and aloud."""
        if self.level < logging.CRITICAL:
            self.setLevel(logging.CRITICAL + 1)
            sys.stderr.write(f"{self.baseFilename} cannot be written; the run goes on without a log\n")


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z"
        facts: dict[str, Any] = getattr(record, "facts", {})
        line = {"at": at, "level": record.levelname.lower(), "event": getattr(record, "event", record.name), **facts}
        # cleaned, because people read it with tail
        message = record.getMessage().encode("utf-8", "replace").decode()  # lone surrogates cannot be written
        return clean(
            msgspec.json.encode({**line, "message": message}, enc_hook=str).decode()
        )  # people read it with tail
