"""Our benchmarks beside those of the installed lm-eval and inspect_evals, on the same hand-made rows.

Prompts are compared byte for byte, scores for the same likelihoods or answers. A card claims `comparable` only where
these tests prove that requests and scores are equal, and says everything else in `differs`.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pytest
import yaml

from holdfast.models import Likelihood
from holdfast.plan import all_benchmarks, prepare
from holdfast.records import Answer, Message, Sample
from holdfast.score import resolve
from holdfast.score.results import score_answer
from holdfast.solve import resolve_solver
from holdfast.testing import FakeHub
from tests.e2e.benchmarks.child_lm_eval import SEEDS, TAIL, likelihood
from tests.e2e.benchmarks.peers import (
    INSPECT_EVALS_TASKS,
    IS_INSTALLED,
    LM_EVAL,
    LM_TASKS,
    NOT_IN_LM_EVAL,
    PEERS,
    lm_job,
    rows_of,
    run_process,
    with_traps,
)
from tests.e2e.benchmarks.test_benchmarks import find, samples_of, spec_of

installed = pytest.mark.skipif(not IS_INSTALLED, reason="`make setup` installs lm-eval and inspect_evals; no network?")
RANKED = sorted(name for name in LM_TASKS if ":likelihood" in name)
TRAPPED = [name for name in RANKED if LM_TASKS[name][0].relation != "different" and not LM_TASKS[name][0].shots]
Request = tuple[str, ...]


class Reply(NamedTuple):
    """An answer that both tools score. Ours has its own form if the prompt asks for one."""

    name: str
    mark: str
    """The sample: a text that only its prompt contains."""
    text: str
    theirs: Mapping[str, float]
    """By filter and metric."""
    ours: Mapping[str, float]
    """By scorer."""
    own_text: str = ""


_STRICT, _FLEXIBLE = "strict-match exact_match", "flexible-extract exact_match"


def _gsm8k(text: str, theirs: tuple[bool, bool], ours: tuple[bool, bool] | None = None) -> Reply:
    """Strict and flexible results, ours if they differ."""
    expected = dict(zip(("strict", "flexible"), ours or theirs, strict=True))
    return Reply("gsm8k:5shot", "a pen $9", text, dict(zip((_STRICT, _FLEXIBLE), theirs, strict=True)), expected)


def _answered(name: str, mark: str, text: str, theirs: Mapping[str, float], **ours: float) -> Reply:
    return Reply(name, mark, text, theirs, ours, f"Answer: {text}")


REPLIES = [
    _gsm8k("9+9=18\n#### 18", (True, True)),
    _gsm8k("#### 18.", (True, True)),
    _gsm8k("#### 18\n\nQuestion: What is 2 plus 2?\nAnswer: #### 4", (True, True)),
    _gsm8k("Both cost 18 dollars.", (False, True)),
    _gsm8k("#### 9", (False, False)),
    _gsm8k("I do not know.", (False, False)),
    # wrong in lm-eval:
    _gsm8k("#### $18", (False, True), (True, True)),
    _gsm8k("#### 18.00", (False, False), (True, True)),
    _gsm8k("They cost 18 ...", (False, False), (False, True)),
    Reply("gsm8k:5shot", "8 degrees colder", "It is \u22125.", {_FLEXIBLE: 0}, {"flexible": True}),
    _answered("drop", "When was it?", "3 May", {"none em": 1, "none f1": 1}, drop_em=1, drop_f1=1),
    _answered("drop", "When was it?", "4 May", {"none em": 0, "none f1": 0}, drop_em=0, drop_f1=0),
    _answered("drop", "How many watched?", "1,200", {"none em": 1, "none f1": 1}, drop_em=1, drop_f1=1),
    # lm-eval ends answers at a dot, and reads several spans as one:
    _answered("drop", "By how many points", "12.5", {"none em": 0, "none f1": 0}, drop_em=1, drop_f1=1),
    _answered("drop", "Who scored?", "Ann Lee, Bo Li", {"none em": 0}, drop_em=1, drop_f1=1),
    _answered("triviaqa", "has the Louvre?", "Paris", {"remove_whitespace exact_match": 1}, exact=1),
    _answered("triviaqa", "has the Louvre?", "Paris, France", {"remove_whitespace exact_match": 1}, exact=1),
    _answered("triviaqa", "has the Louvre?", "Lyon", {"remove_whitespace exact_match": 0}, exact=0),
    # lm-eval ends answers at commas and dots, and keeps articles:
    _answered("triviaqa", "has the Louvre?", "the City of Light", {"remove_whitespace exact_match": 0}, exact=1),
    _answered("triviaqa", "has the Louvre?", "Paris, Texas", {"remove_whitespace exact_match": 1}, exact=0),
    # An answer that is only an article is wrong here: it would match every reply that ends with one.
    _answered("triviaqa", "vitamin is retinol", "A", {"remove_whitespace exact_match": 1}, exact=0),
    Reply("mmlu_pro", "digit is the largest", "The answer is (J).", {"custom-extract exact_match": 1}, {"choice": 1}),
    Reply("mmlu_pro", "digit is the largest", "The answer is (A).", {"custom-extract exact_match": 0}, {"choice": 0}),
    # lm-eval takes the first letter, and reads one phrase only:
    Reply("mmlu_pro", "digit is the largest", "Answer: J", {"custom-extract exact_match": 0}, {"choice": 1}),
    Reply("mmlu_pro", "digit is the largest", "The answer is **J**.", {"custom-extract exact_match": 0}, {"choice": 1}),
    Reply(
        "mmlu_pro",
        "digit is the largest",
        "At first, the answer is B. No, the answer is (J).",
        {"custom-extract exact_match": 0},
        {"choice": 1},
    ),
    Reply("mgsm", "en: 10 +", "20", {_FLEXIBLE: 1}, {"flexible": 1}),
    Reply("mgsm", "en: 10 +", "2", {_FLEXIBLE: 0}, {"flexible": 0}),
    Reply("mgsm", "en: 1000 +", "1,234", {_FLEXIBLE: 1}, {"flexible": 1}),
    Reply("mgsm", "en: 1000 +", "1,234.0", {_FLEXIBLE: 0}, {"flexible": 1}),
    Reply("math_500", "chance of heads", "$\\frac{1}{2}$", {"none exact_match": 1}, {"flexible": 1}),
    Reply("math_500", "chance of heads", "$\\frac{1}{3}$", {"none exact_match": 0}, {"flexible": 0}),
    # lm-eval compares the whole reply:
    Reply("math_500", "chance of heads", "\\boxed{\\frac{1}{2}}", {"none exact_match": 0}, {"flexible": 1}),
    Reply("aime_2024", "m + n = 25", "So \\boxed{25}.", {"none exact_match": 1}, {"strict": 1}),
    Reply("aime_2024", "m + n = 25", "So \\boxed{26}.", {"none exact_match": 0}, {"strict": 0}),
    Reply("aime_2024", "m + n = 25", "So \\boxed{025}.", {"none exact_match": 0}, {"strict": 1}),
    *(
        Reply(
            "ifeval",
            mark,
            text,
            {"none prompt_level_strict_acc": strict, "none prompt_level_loose_acc": loose},
            {"prompt_strict": strict, "prompt_loose": loose},
        )
        for mark, text, strict, loose in (
            ("Name two rivers", "- Rhine\n- Elbe", True, True),
            ("Name two rivers", "Sure, here:\n- Rhine\n- Elbe", False, True),
            ("Name two rivers", "- Rhine", False, False),
            ("Name two rivers", "", False, False),
            ("greeting in German", "deutsch: Guten Tag!", True, True),
            ("greeting in German", "Good morning!", False, False),
            ("Describe the sea", "It is wide.", True, True),
            ("Describe the sea", "Wide.", False, False),
        )
    ),
]
"""Replies that both tools score, with those that lm-eval gets wrong."""


class Recorder:
    """Records what a solver sends, and replies with the made-up likelihoods of one seed."""

    def __init__(self, messages: list[Message], seed: int) -> None:
        self.messages, self.seed = messages, seed
        self.sent: list[Request] = []

    async def likelihood(self, context: str, continuation: str) -> Likelihood:
        self.sent.append((context, continuation))
        return Likelihood(likelihood(self.seed, context, continuation), 1)


def run_lm_eval(names: Sequence[str], **changes: Any) -> dict[str, list[dict[str, Any]]]:
    """What lm-eval sends and scores for each benchmark."""
    answers = {name: [each.text for each in REPLIES if each.name == name] for name in names}
    jobs = [(name, lm_job(name, task, answers[name], **changes)) for name in names for task in LM_TASKS[name]]
    found: dict[str, list[dict[str, Any]]] = {}
    for (name, _), result in zip(jobs, run_process("child_lm_eval", [job for _, job in jobs]), strict=True):
        found.setdefault(name, []).append(result)
    return found


@pytest.fixture(scope="module")
def lm() -> dict[str, list[dict[str, Any]]]:
    return run_lm_eval(sorted(LM_TASKS))


@pytest.fixture(scope="module")
def lm_with_traps() -> dict[str, list[dict[str, Any]]]:
    return run_lm_eval(TRAPPED, change=with_traps)


def sent(name: str, sample: Sample, messages: list[dict[str, Any]], seed: int = 0) -> tuple[list[Request], Answer]:
    """The requests for a sample: contexts and continuations, or the text of a chat."""
    solver = spec_of(name).tasks[0].solver
    if ":likelihood" not in name:
        return [("\n\n".join(message["content"] for message in messages),)], Answer("")
    recorder: Any = Recorder(messages, seed)
    answer = asyncio.run(resolve_solver(solver, "").solve(sample, recorder))
    return recorder.sent, answer


def scores(name: str, sample: Sample, answer: Answer) -> dict[str, Any]:
    entries = [resolve(entry, "") for entry in spec_of(name).tasks[0].scorers]
    return {entry.name: asyncio.run(score_answer(entry, sample, answer))[entry.name].value for entry in entries}


def requests_of(result: dict[str, Any]) -> list[frozenset[Request]]:
    """The requests of lm-eval by row. The options of generated answers are left out. Its models move white space at the
    end of a context to the continuation, as ours do.
    """

    def moved(context: str, continuation: Any) -> Request:
        bare = context.rstrip()
        is_text = isinstance(continuation, str)
        return (bare, context[len(bare) :] + continuation) if is_text else (context,)

    return [frozenset(moved(*request) for request in row) for row in result["requests"]]


def tails(requests: frozenset[Request]) -> frozenset[Request]:
    """What decides the likelihoods."""
    return frozenset((context[-TAIL:], continuation) for context, continuation in requests)


@installed
@pytest.mark.parametrize("name", sorted(LM_TASKS))
def test_prompts_are_those_of_lm_eval_where_the_table_says_so(name: str, hub: FakeHub, lm: Any) -> None:
    ours = {frozenset(sent(name, sample, messages)[0]) for sample, messages in samples_of(name)}
    theirs = {row for result in lm[name] for row in requests_of(result)}
    if LM_TASKS[name][0].relation == "different":
        contexts = [{request[0] for row in rows for request in row} for rows in (ours, theirs)]
        assert contexts[0].isdisjoint(contexts[1])
    else:
        assert ours == theirs


@installed
@pytest.mark.parametrize("name", TRAPPED)
def test_prompts_are_equal_for_texts_with_traps(name: str, hub: FakeHub, lm_with_traps: Any) -> None:
    benchmark, ours = all_benchmarks()[name], set()
    dataset = benchmark.task["dataset"]
    (work,) = prepare(spec_of(name), {}, {}).values()
    assert benchmark.convert is not None
    for row in rows_of(name)[dataset["split"]]:
        converted: Any = benchmark.convert(with_traps(row))
        sample = Sample("x", converted[dataset["input"]], converted[dataset["target"]], converted)
        ours.add(frozenset(sent(name, sample, work.renderer.messages(sample))[0]))
    assert ours == {row for result in lm_with_traps[name] for row in requests_of(result)}


@installed
@pytest.mark.parametrize("name", RANKED)
def test_the_same_likelihoods_have_the_same_scores(name: str, hub: FakeHub, lm: Any) -> None:
    """Also where prompts differ: the made-up likelihoods depend on the end of the prompt."""
    theirs = {
        tails(requests): metrics
        for result in lm[name]
        for requests, metrics in zip(requests_of(result), result["scores"], strict=True)
    }
    metric = {"mc2": "acc"}
    for sample, messages in samples_of(name):
        for seed in range(SEEDS):
            requests, answer = sent(name, sample, messages, seed)
            expected = theirs[tails(frozenset(requests))][seed]
            for scorer, value in scores(name, sample, answer).items():
                assert value == pytest.approx(expected[metric.get(scorer, scorer)]), (sample.id, seed, scorer)


def claim_of(name: str, version: Any) -> str:
    """What the card of a benchmark may claim. Tasks without a version have the number of their format."""
    tasks = LM_TASKS.get(name, [])
    if not tasks or any(task.relation != "equal" for task in tasks):
        return ""
    return f"{LM_EVAL}, {tasks[0].claim}".replace("{version}", str(version).removesuffix(".0"))


@installed
def test_cards_claim_exactly_what_is_proven_here(lm: Any) -> None:
    group = yaml.safe_load((PEERS / "lm_eval/tasks/mmlu/default/_mmlu.yaml").read_text())
    assert f"group mmlu version {group['metadata']['version']}" in LM_TASKS["mmlu:likelihood"][0].claim
    for name, benchmark in all_benchmarks().items():
        versions = [result["version"] for result in lm.get(name, [])]
        assert benchmark.comparable == claim_of(name, versions[0] if versions else ""), name


def test_only_benchmarks_with_an_equal_peer_claim_to_be_comparable() -> None:
    claims = {name for name, benchmark in all_benchmarks().items() if benchmark.comparable}
    assert claims == {name for name in LM_TASKS if claim_of(name, "")}


@pytest.mark.parametrize("name", sorted(LM_TASKS))
def test_cards_say_how_they_differ(name: str) -> None:
    for task in LM_TASKS[name]:
        assert task.relation == "equal" or task.differs
        assert task.differs in all_benchmarks()[name].differs


def test_every_benchmark_has_a_peer_or_a_reason() -> None:
    assert {*LM_TASKS} | {*NOT_IN_LM_EVAL} == {*all_benchmarks()}
    assert not {*LM_TASKS} & {*NOT_IN_LM_EVAL}
    assert {*INSPECT_EVALS_TASKS} <= {*all_benchmarks()}


@installed
def test_benchmarks_without_a_peer_are_not_among_the_tasks_of_lm_eval() -> None:
    paths = [re.sub("[^a-z0-9]", "", str(path).lower()) for path in (PEERS / "lm_eval/tasks").rglob("*.yaml")]
    missing = [name for name, why in NOT_IN_LM_EVAL.items() if why == "not among its tasks"]
    for name in missing:
        assert not any(name.partition(":")[0].replace("_", "") in path for path in paths), name


@installed
@pytest.mark.parametrize("name", sorted({each.name for each in REPLIES}))
def test_replies_have_the_listed_scores_in_both_tools(name: str, hub: FakeHub, lm: Any) -> None:
    samples, replies = samples_of(name), [each for each in REPLIES if each.name == name]
    for number, reply in enumerate(replies):
        sample = find(samples, reply.mark)
        found = scores(name, sample, Answer(reply.own_text or reply.text))
        assert {scorer: found[scorer] for scorer in reply.ours} == reply.ours, (reply, found)
        (row,) = (
            result["scores"][index][number]
            for result in lm[name]
            for index, requests in enumerate(result["requests"])
            if reply.mark in requests[0][0].rpartition("\n\n")[2]
        )
        given = {f"{kept} {metric}": value for kept, metrics in row.items() for metric, value in metrics.items()}
        assert {each: given[each] for each in reply.theirs} == reply.theirs, (reply, given)


@pytest.fixture(scope="module")
def inspected() -> dict[str, dict[str, Any]]:
    """What inspect_evals makes of the rows."""
    called = {name: each for name, each in INSPECT_EVALS_TASKS.items() if each.function}
    jobs = [
        {
            "module": each.module,
            "function": each.function,
            "rows": rows_of(name, each.part)[all_benchmarks()[name].task["dataset"]["split"]],
        }
        for name, each in called.items()
    ]
    return dict(zip(called, run_process("child_inspect", jobs), strict=True))


@installed
@pytest.mark.parametrize("name", sorted(INSPECT_EVALS_TASKS))
def test_the_data_is_that_of_inspect_evals_except_where_the_table_says_so(name: str) -> None:
    peer, benchmark = INSPECT_EVALS_TASKS[name], all_benchmarks()[name]
    folder = PEERS / "inspect_evals" / peer.module.partition(".")[0]
    facts = yaml.safe_load((folder / "eval.yaml").read_text())
    (samples,) = (task["dataset_samples"] for task in facts["tasks"] if task["name"] == peer.task)
    assert samples == (peer.samples or benchmark.samples)
    assert peer.samples != benchmark.samples
    dataset = benchmark.task["dataset"]
    sources = " ".join(asset["source"] for asset in facts["external_assets"])
    assert (peer.hub or dataset["hub"]) in sources
    assert peer.hub != dataset["hub"]
    if not peer.hub and dataset.get("revision", "").isalnum():
        assert dataset["revision"] in "".join(path.read_text() for path in folder.glob("*.py"))
    assert peer.why or not (peer.samples or peer.hub)


@installed
@pytest.mark.parametrize("name", sorted(name for name, each in INSPECT_EVALS_TASKS.items() if each.function))
def test_targets_and_choices_are_those_of_inspect_evals(name: str, inspected: Any) -> None:
    peer, benchmark = INSPECT_EVALS_TASKS[name], all_benchmarks()[name]
    dataset = benchmark.task["dataset"]
    rows = rows_of(name, peer.part)[dataset["split"]]
    assert benchmark.convert is not None
    for row, theirs in zip(rows, inspected[name]["samples"], strict=True):
        ours: Any = benchmark.convert(dict(row))
        if "choices" in theirs:
            expected = [peer.read(choice) for choice in theirs["choices"]]
            correct, texts = "ABCDEFGHIJ".index(theirs["target"]), ours["choices"]["text"]
            assert expected[correct] == texts[ours["index"]]
            assert expected[: len(texts)] == texts or (sorted(expected) == sorted(texts) and "shuffled" in peer.why)
        elif "target" in theirs:
            assert peer.read(theirs["target"]) == ours[peer.column or dataset["target"]]
