"""The leaderboard page shows several tasks beside each other."""

from holdfast.report import LeaderboardResult, Suite, SuiteModel, SuiteTask
from holdfast.stats import BOOL, Summary
from holdfast.view.links import Links
from holdfast.view.pages import leaderboard
from holdfast.view.pages.leaderboard import LeaderboardView
from holdfast.view.sources import RunRef


def test_tasks_are_columns_and_texts_are_no_markup() -> None:
    """Also a task with the name of another column."""
    models = (
        SuiteModel(1, "m<b>", "r", {"one": 0.5, "run": 1.0}, Summary(40, 0.75, 0.1, 0.6, 0.9)),
        SuiteModel(None, "other", "r", {"one": 0.25}, lacks=("run",)),
    )
    suite = Suite((SuiteTask("one", "s", BOOL), SuiteTask("run", "s", BOOL)), models)
    result = LeaderboardResult((), True, (), evaluations={"r": "e"}, suite=suite)
    view = LeaderboardView("e", ["e"], [], [RunRef("e", "r")], result=result)
    page = str(leaderboard.render(view, Links()).content)
    assert "All tasks" in page
    assert "m&lt;b&gt;" in page
    assert "m<b>" not in page
    assert all(f">{number}</td>" in page for number in ("0.7500", "0.5000", "1.0000", "0.2500"))
    assert "2 of 2 tasks that all models have completed" in page
