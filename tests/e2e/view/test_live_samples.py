"""A sample of many steps while it is solved: every window says what it does now, and grows without being read again."""

from pathlib import Path

from tests.e2e.live_runs import RUN, alive, gate, stage, wait_for
from tests.e2e.view.viewer import viewing

SAMPLE = f"/runs/sums/{RUN}/samples/sums/arith/s0001/1"
SOLVER = """
async def many(sample, ctx):
    for turn in range(400):
        answer = await ctx.generate([{"role": "user", "content": f"turn {turn}"}])
    return answer
"""


def test_every_window_says_what_the_sample_does_and_the_last_one_follows_it(tmp_path: Path) -> None:
    door = gate(tmp_path, free=380)
    course = stage(tmp_path, 1, model=door.model, task={"solver": "many:many", "scorers": ["numeric"]})
    (tmp_path / "many.py").write_text(SOLVER)
    with alive(course) as process, viewing(course.store) as viewer:
        wait_for(lambda: len(door.asked) == 381, "the request that waits")
        wait_for(lambda: "turn 381, waiting for the model" in viewer.get(SAMPLE).text, "the first window says so")
        first, last = viewer.get(f"/api{SAMPLE}").json(), viewer.get(f"/api{SAMPLE}?step=last").json()
        assert (first["window"]["first"], first["window"]["total"], first["live"]) == (1, 380, True)
        assert (last["window"]["last"], last["story"]["in_progress"]["turn"]) == (380, 381)
        assert first["timeline"]["lives"][0]["end"] == "running"
        door.open()
        wait_for(lambda: viewer.get(f"/api{SAMPLE}").json()["story"]["status"] == "finished", "the answer")
        last = viewer.get(f"/api{SAMPLE}?step=last").json()
        steps = last["story"]["attempts"][0]["steps"]
        assert [step["turn"] for step in steps] == list(range(351, 401))
        assert last["window"]["total"] == last["story"]["attempts"][0]["turns"] == 400
        process.wait(60)
    assert course.show()["status"] == "completed"
