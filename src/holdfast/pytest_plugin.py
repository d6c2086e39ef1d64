"""The pytest plugin that comes with Holdfast: the fixture `assert_score`. pytest finds it by its entry point.

    def test_the_model_can_add(assert_score):
        run = holdfast.run("eval.yaml", id="nightly")
        assert_score(run, at_least=0.8)

Every pytest run imports this module, also in projects that never use it, so it imports nothing else of Holdfast until
a score is asserted.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast.runs import Run


@pytest.fixture(name="assert_score", scope="session")
def _fixture() -> Callable[..., None]:
    """`holdfast.pytest_plugin.assert_score` as a fixture."""
    return assert_score


def assert_score(
    run: "Run | str",
    scorer: str | None = None,
    at_least: float = 0.8,
    confidence: float = 0.95,
    *,
    certain: bool = False,
    failed_max: int = 0,
) -> None:
    """Fail, with the mean, its interval, n and the wrong keys, if the mean of a scorer is below `at_least` in any task
    with any model.

    `run` is the result of `holdfast.run`, or a run's id, `latest`, or folder. Without `scorer`, every scorer that gives
    numbers counts. `confidence` is the level of the interval; with `certain=True` the whole interval must be high
    enough, which small data sets seldom reach. As in `holdfast gate`, answers without a score (failed, unfinished,
    no score, scorer failed) fail the test if there are more than `failed_max`; up to that number they count as wrong.
    """
    __tracebackhide__ = True
    from holdfast.report import RequiredScore, shortcomings
    from holdfast.runs import Run, default_store
    from holdfast.spec import Reduction

    found = Run.find(default_store(), run) if isinstance(run, str) else run
    try:
        name, known = f"{found.place.experiment}/{found.place.run_id}", found.scorers()
        if scorer is not None and scorer not in known:
            pytest.fail(f"{name} has no scorer {scorer!r}; it has {', '.join(known) or 'none'}", pytrace=False)
        sides = found.sides(name, reductions=dict.fromkeys(found.reductions(), (Reduction(),)))
        problems = shortcomings(sides, RequiredScore(at_least, scorer or "", confidence, certain, failed_max))
    finally:
        if found is not run:
            found.close()
    if problems:
        look = f"look at them with: {found.place.command('show', '--failed')} or --wrong"
        pytest.fail("\n".join([f"{name} does not meet the standard", *problems, look]), pytrace=False)
