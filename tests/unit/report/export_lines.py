"""Lines of an export that no run is needed for, and texts that break careless writers."""

from typing import Any

from holdfast.records.facts import Failure
from holdfast.report import ExportLine

HOSTILE = (
    "</script><img src=http://127.0.0.1:9/x onerror=\"alert(1)\"> & 50% of $x_1^2$ {a}~b\\c #d\n\x00 \u202e | 'q' `t`"
)


def line(number: int = 0, **fields: Any) -> ExportLine:
    told: dict[str, Any] = {
        "key": f"task/model/s{number}/1",
        "task": "task",
        "model": "model",
        "sample_id": f"s{number}",
        "repeat": 1,
        "status": "finished",
        "output": "text",
        "error": None,
        "scores": {},
        "attempt": 1,
        "seconds": 0.5,
    }
    return ExportLine(**{**told, **fields})


def failed(number: int, kind: str, message: str) -> ExportLine:
    return line(number, status="failed", output=None, error=Failure(kind, message))
