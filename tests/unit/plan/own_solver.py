"""A solver of somebody's own, with an argument."""

from holdfast import Context, Sample


async def twice(sample: Sample, ctx: Context, times: int = 2) -> str:
    return str(sample.input) * times
