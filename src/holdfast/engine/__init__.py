"""One process's work on one run, from the plan to recorded answers and scores.

The way of one sample through these modules:

1. `engine` is the scheduler: it starts workers for each cell and limits how much happens at once.
2. `schedule` gives a worker the next `Ticket`: a key of the plan that has no answer yet, with its row.
3. `history` reads what earlier processes recorded for the key. `sample` starts an attempt that replays it.
4. `sample` runs the solver. Each request of the solver is a step (`holdfast.solve.steps`), replayed or live.
5. A live request passes `budget` (may the run still spend?), then `client` (pacing, retries, closed models), which
   calls the provider. `attachments` puts the content of files into the request.
6. The answer is in the journal before the solver sees it. `failures` turns exceptions into recorded failures.
7. `scoring` scores the finished answer; `earlier_scores` copies scores of scorers that have not changed.
8. `watchdog` writes the heartbeat and reports samples (`in_flight`) that do not move. `anomaly_scan` and `replay` serve
   other commands: looking for anomalies again, and running a solver on recorded steps alone.
"""

from holdfast.engine.engine import Engine, Progress, RunJob
from holdfast.engine.watchdog import Watchdog, WatchdogOptions

__all__ = ["Engine", "Progress", "RunJob", "Watchdog", "WatchdogOptions"]
