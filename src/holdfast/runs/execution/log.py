"""The log of a run, `log.jsonl`: one JSON object per line, with an event name from `EVENTS`. For people and machines.

Holdfast never reads it back, so a crash costs at most its last lines. It is rotated. A log that cannot be written is
given up with one warning; the run continues.
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
    "run.started": ("info", "a run started"),
    "run.resumed": ("info", "a process resumed a run"),
    "run.extended": ("info", "keys were added to a run"),
    "run.replanned": ("info", "a model that had given no answer was corrected"),
    "run.completed": ("info", "every key is finished, or failed for good"),
    "run.interrupted": ("warning", "the run was stopped and can be resumed"),
    "run.cancelled": ("warning", "the run was stopped by `holdfast cancel`"),
    "run.failed": ("error", "the run cannot continue; the message has the reason"),
    "run.shutdown_requested": ("warning", "a signal or `holdfast cancel` requested a stop"),
    "run.status_write_failed": ("error", "how the run ended could not be recorded; it counts as interrupted"),
    "run.stalled": ("warning", "the run makes no progress, or its event loop is blocked; with the code that blocks it"),
    "run.moving_again": ("info", "a stalled run makes progress again"),
    "run.watch_failed": ("warning", "the watchdog of the run had an error; the run is not affected"),
    "run.budget_reached": ("info", "a limit in `limits.run` is reached; the run stops after the samples in flight"),
    "run.tuned": ("info", "limits of the live run were changed"),
    "cell.stopped": (
        "error",
        "the model of a cell refuses every request or is gone; the rest of the cell stays unfinished",
    ),
    "model.waiting": (
        "warning",
        "the server of a model is down; Holdfast waits, and sends a probe request now and then",
    ),
    "model.answers": ("info", "the server of a model works again"),
    "model.stopped": ("error", "a model cannot be used: its key or name is refused, or its server stayed down"),
    "sample.failed": ("warning", "a sample failed for good; with its kind"),
    "sample.save_failed": ("error", "a sample's record could not be saved; it counts as failed"),
    "sample.stalled": (
        "warning",
        "a sample neither sends a request nor returns; with the line at which its code waits",
    ),
    "sample.overdue": ("warning", "a sample is past its time limit and does not end"),
    "model.rests": ("warning", "one URL of a model fails and is paused; the others are used, and it is retried later"),
    "model.back": ("info", "a paused URL of a model works again"),
    "sandbox.cleared": (
        "info",
        "processes and files left by the sandboxes of a dead process of this run were removed",
    ),
    "sandbox.unconfined": ("warning", "this machine does not support the full confinement of sandboxed commands"),
    "sandbox.counted": (
        "info",
        "no control group can be created: memory limits of sandboxed commands are polled, and may be exceeded briefly",
    ),
    "sandbox.lost": ("warning", "the files of a sample's sandbox cannot be restored; the sample starts over"),
    "sandbox.disk_full": ("error", "no disk space is left for the files of sandboxes; their samples wait"),
    "batch.incomplete": ("warning", "a batch API job ended without a response to each of its requests"),
    "batch.strange_lines": (
        "warning",
        "results of a job are unreadable, duplicated or belong to no request; they are ignored",
    ),
    "batch.unmarked": ("warning", "the server does not keep a job's metadata, by which it is found after a crash"),
    "batch.failed": ("error", "the results of a job cannot be fetched; the run stops, and the next start retries"),
    "journal.commit_slow": ("warning", "a commit took longer than a second"),
    "journal.disk_full": ("error", "no disk space is left; the run waits"),
    "journal.poisoned": ("error", "a write or sync failed; the journal continues in a new segment"),
    "journal.seal_failed": ("warning", "a segment stays uncompressed"),
    "journal.stopped": ("error", "the journal can no longer be written"),
    "mirror.failed": ("warning", "the mirror cannot be written; the run continues, and the upload is retried"),
    "mirror.restored": ("info", "the mirror can be written again"),
    "mirror.waiting": ("warning", "the run has ended, and waits for its last records to reach the mirror"),
    "mirror.behind": ("warning", "the run ended with records that are not in its mirror yet"),
    "mirror.recovered": ("info", "records were restored from the mirror"),
    "lease.lost": ("error", "another process has taken the run over, or its mirror was removed; this one stops"),
}
"""Every event with its level and meaning; the source of docs/events.md."""


class EventLog:
    """Writes events from any thread."""

    def __init__(self, run: str, run_id: str) -> None:
        self._run_id = run_id
        self._closed = False
        # Keep Python from printing warnings of a logger without handlers; applications add their own handler.
        logger = logging.getLogger("holdfast")
        if not any(isinstance(each, logging.NullHandler) for each in logger.handlers):
            logger.addHandler(logging.NullHandler())
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
        if self._closed:  # events after the end are still written; reopening the file must not leave it open
            self._handler.close()
        logging.getLogger("holdfast").log(level, "%s: %s", event, clean(message), extra=extra)

    def close(self) -> None:
        self._closed = True
        self._handler.close()


class _Rotating(logging.handlers.RotatingFileHandler):
    def _open(self) -> TextIOWrapper:
        return open(open_or_create(self.baseFilename), "a", encoding=self.encoding)

    def handleError(self, record: logging.LogRecord) -> None:
        """Give the log up, with one warning on standard error."""
        if self.level < logging.CRITICAL:
            self.setLevel(logging.CRITICAL + 1)
            sys.stderr.write(f"{self.baseFilename} cannot be written; the run continues without a log\n")


class _Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03}Z"
        facts: dict[str, Any] = getattr(record, "facts", {})
        line = {"at": at, "level": record.levelname.lower(), "event": getattr(record, "event", record.name), **facts}
        message = record.getMessage().encode("utf-8", "replace").decode()  # lone surrogates cannot be written
        return clean(
            msgspec.json.encode({**line, "message": message}, enc_hook=str).decode()
        )  # no control characters: people read it with tail
