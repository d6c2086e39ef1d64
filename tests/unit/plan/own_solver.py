"""A solver of somebody's own, with an argument."""

from holdfast.records.samples import Sample
from holdfast.solve.context import Context


async def twice(sample: Sample, ctx: Context, times: int = 2) -> str:
    return str(sample.input) * times
