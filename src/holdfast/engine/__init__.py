"""One process's work on one run, from the plan to recorded answers and scores.

The way of one sample, from the scheduler to the wire:

1. `Engine._work` (`engine`): a worker of a cell takes the next `Ticket` (`schedule`), a key without an answer.
2. `Sampler.answer` (`sample`): attempts until there is an answer. `history` reads what earlier processes recorded.
3. `Sampler._attempt`: renders the prompt and runs the solver, here `chat`. `failures` turns exceptions into failures.
4. `Context.generate` (`solve.context`): makes the request a `GenerateCall`, which goes all the way down.
5. `Steps._make` (`solve.steps`): a request that is not recorded goes live; its answer is saved before it returns.
6. `Budget._send` (`budget`): waits while the run's budget could be exceeded, and counts what was used.
7. `ModelClient._send` (`client`): one model, with its pace, its circuit breaker and its refusals.
8. `ask` (`models.pacing.retries`): the one loop that sends a request again.
9. `generate` of a provider (`models.providers`), then `Endpoint` and `Connection` (`models.http`).

Back up, `Sampler._finish` saves the answer. Quick scorers run before that and are saved with it; all others run after
it (`scoring`). `progress` counts for displays. `watchdog` writes the heartbeat and reports samples (`in_flight`) that
do not move. `anomaly_scan` and `replay` serve other commands: looking for anomalies again, and running a solver on
recorded steps alone.
"""

from holdfast.engine.anomaly_scan import AnomalyScan
from holdfast.engine.budget import Amount, Grant, Grants, output_limit, spent_in
from holdfast.engine.engine import Engine, RunJob
from holdfast.engine.failures import failure_of, is_ours, secrets_of
from holdfast.engine.history import KeyTraces, LastAttempt
from holdfast.engine.progress import ModelProgress, Progress, RunCounts
from holdfast.engine.schedule import Ticket, Tickets
from holdfast.engine.scoring import AnswerToScore, apply_scorer, batches_for, sources_of
from holdfast.engine.watchdog import Watchdog, WatchdogOptions

__all__ = [
    "Amount",
    "AnomalyScan",
    "AnswerToScore",
    "Engine",
    "Grant",
    "Grants",
    "KeyTraces",
    "LastAttempt",
    "ModelProgress",
    "Progress",
    "RunCounts",
    "RunJob",
    "Ticket",
    "Tickets",
    "Watchdog",
    "WatchdogOptions",
    "apply_scorer",
    "batches_for",
    "failure_of",
    "is_ours",
    "output_limit",
    "secrets_of",
    "sources_of",
    "spent_in",
]
