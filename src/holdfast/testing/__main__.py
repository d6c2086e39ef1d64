"""`python -m holdfast.testing`: the test server on the command line. Its first line of output is its base URL."""

import argparse
import asyncio
import signal
import sys

import msgspec

from holdfast.testing.behaviour import FAULT_KINDS, Behaviour, Fault
from holdfast.testing.server import ModelServer


def main(arguments: list[str] | None = None) -> None:
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        behaviour = _behaviour(given)
    except ValueError as error:  # msgspec's are ValueErrors too
        parser.error(str(error))
    asyncio.run(_serve(behaviour, given.port, given.while_stdin_is_open))


def parse_fault(text: str) -> Fault:
    """`kind`, or `kind:rate=0.1`, `kind:every=10`, `kind:first=3`; several with commas."""
    kind, _, rest = text.partition(":")
    settings = dict(each.split("=", 1) for each in rest.split(",")) if rest else {}
    return msgspec.convert({"kind": kind} | settings, Fault, strict=False)


async def _serve(behaviour: Behaviour, port: int, while_stdin_is_open: bool) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    if while_stdin_is_open:
        loop.add_reader(sys.stdin.fileno(), stop.set)  # nothing is ever written to it: readable means closed
    async with ModelServer(behaviour, port) as server:
        sys.stdout.write(f"{server.base_url}\n")
        sys.stdout.flush()
        await stop.wait()


def _behaviour(given: argparse.Namespace) -> Behaviour:
    if given.behaviour:
        return msgspec.json.decode(given.behaviour, type=Behaviour)
    return Behaviour(
        latency_seconds=given.latency_ms / 1000,
        jitter_seconds=given.jitter_ms / 1000,
        wrong_rate=given.wrong_rate,
        faults=[parse_fault(text) for text in given.fault],
        seed=given.seed,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m holdfast.testing",
        description="A model server on 127.0.0.1 for tests. It counts requests (GET /stats) and can simulate faults. "
        "It serves the APIs of OpenAI (chat completions, completions, responses), Anthropic and Google.",
        epilog="faults: any status from 400 to 599, "
        + "; ".join(f"{kind}: {what}" for kind, what in FAULT_KINDS.items()),
    )
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--latency-ms", type=float, default=0.0)
    parser.add_argument("--jitter-ms", type=float, default=0.0, help="up to this much more, by hash")
    parser.add_argument("--wrong-rate", type=float, default=0.0, help="share of sums that it gets wrong, by hash")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--fault", action="append", default=[], metavar="KIND[:rate=R,every=N,first=N]", help="may be repeated"
    )
    parser.add_argument("--behaviour", default="", metavar="JSON", help="all of the above but the port, as one object")
    parser.add_argument("--while-stdin-is-open", action="store_true", help="end when standard input is closed")
    return parser


if __name__ == "__main__":
    main()
