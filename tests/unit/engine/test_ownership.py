"""While another process may own the run, nothing is sent: not by any path to a server."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.journal import Writer
from holdfast.models import Request
from holdfast.records.samples import Sample
from holdfast.score import scorer
from holdfast.solve import Context, tool
from tests.unit.engine.runs import Asked, echo, given, go, model, rows


class Permission:
    """Given at every third look, and used up by what is sent."""

    def __init__(self) -> None:
        self.looks = 0
        self.is_given = False
        self.sent: list[tuple[str, bool]] = []

    def look(self) -> bool:
        self.looks += 1
        self.is_given = self.looks % 3 == 0
        return self.is_given

    def use(self, what: str) -> None:
        self.sent.append((what, self.is_given))
        self.is_given = False


@pytest.mark.parametrize("batch", [None, {"quiet_seconds": 0.01, "poll_seconds": 0.01}], ids=["single", "batch"])
def test_requests_jobs_judges_and_tools_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: dict[str, Any] | None
) -> None:
    permission = Permission()
    monkeypatch.setattr(Writer, "may_send", property(lambda writer: permission.look))

    async def answer(request: Request) -> str:
        permission.use("model")
        return await echo(request)

    async def judge(request: Request) -> str:
        permission.use("judge")
        return await echo(request)

    @tool
    async def plain() -> None:
        permission.use("tool")

    @tool(repeatable=False)
    async def single() -> None:
        permission.use("unrepeatable tool")

    async def solve(sample: Sample, ctx: Context) -> str:
        await ctx.call(plain)
        await ctx.call(single)
        return (await ctx.generate()).text

    @scorer
    async def judged(sample: Sample, answer: Any, ctx: Context) -> float:
        return float((await ctx.generate("1", role="judge")).text)

    task = Asked(rows=rows(1), solver=solve, scorers=[judged], fields={"prompt": "{input}"})
    fields = {"batch": batch} if batch else {}
    roles = {"judge": {**model("judge", judge, **fields)}}
    del roles["judge"]["name"]
    outcome = go(tmp_path, given([task], [model("answerer", answer, **fields)], roles=roles))
    assert outcome.finished == 1
    assert permission.sent == [(each, True) for each in ("tool", "unrepeatable tool", "model", "judge")]
