"""Where sandboxes do their work: what waits for a thread does not count as working."""

from holdfast.sandbox.threads import WorkStopwatch


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_stopwatch_stops_while_everything_waits() -> None:
    clock = Clock()
    watch = WorkStopwatch(clock)
    clock.now += 1  # the tool itself works
    watch.wait()
    clock.now += 10
    watch.begin()
    clock.now += 2
    watch.wait()
    clock.now += 3  # one waits, one works
    watch.end()
    clock.now += 20
    watch.give_up()
    clock.now += 4
    assert watch.seconds == watch.seconds == 10.0
