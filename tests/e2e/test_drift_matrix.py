"""What a resume may change: every field of a spec, found from its types, in every place where it can be written.

One run is prepared and complete; each case copies it and brings a spec in which one field differs. A changed file is
brought by the command itself, in a process of its own; the other ways to write a change call the command's entry point
in this process.
"""

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import yaml

import holdfast
from holdfast.errors import DriftError
from holdfast.spec import Spec, build_spec, spec_mapping
from holdfast.state import Index
from tests.e2e.commands import Done, call, exported, run, shown, snapshot
from tests.spec_fields import (
    Leaf,
    Mapping,
    changed,
    full_spec,
    has_default,
    in_defaults,
    local_leaves,
    value_at,
    with_value,
)
from tests.unit.engine.runs import cut_after, records

RUN = "r"
LEAVES = local_leaves()
IN_DEFAULTS = [leaf for leaf in LEAVES if has_default(leaf)]
IN_PYTHON = [leaf for leaf in LEAVES if leaf.name != "experiment"]
ACCEPTED = [leaf for leaf in LEAVES if leaf.declared in {"throughput", "place"}]
_RESUMED = re.compile(r"^# Resumed by holdfast \S+ at \S+: (\S+): (.*) -> (.*)$", re.MULTILINE)

Command = Callable[..., Done]


class Prepared(NamedTuple):
    """A complete run and what it was asked."""

    store: Path
    base: Mapping
    spec: Spec

    @property
    def effective(self) -> Mapping:
        return spec_mapping(self.spec)


class Case(NamedTuple):
    """A copy of the prepared run, and the one change that a resume brings."""

    folder: Path
    leaf: Leaf
    old: Any
    new: Any

    @property
    def store(self) -> Path:
        return self.folder / "runs"

    @property
    def run(self) -> Path:
        return self.store / "drift" / RUN

    @property
    def change(self) -> Mapping:
        return {"field": self.leaf.field, "old": self.old, "new": self.new, "kind": self.leaf.declared}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    folder = tmp_path_factory.mktemp("prepared")
    base = full_spec(folder)
    done = call("run", written(folder, base), "--id", RUN, "--store", folder / "runs", cwd=folder)
    assert done.code == 0, done.err
    return Prepared(folder / "runs", base, build_spec(base))


@pytest.fixture(scope="module")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """The same, begun from Python."""
    folder = tmp_path_factory.mktemp("scripted")
    base = full_spec(folder)
    script(base, folder / "runs")
    return Prepared(folder / "runs", base, build_spec(base))


def copied(prepared: Prepared, folder: Path, leaf: Leaf) -> Case:
    """The run as it was first, and its mirror too: what another case did to that would be brought home."""
    shutil.copytree(prepared.store, folder / "runs")
    mirror, first = prepared.store.with_name("mirror"), prepared.store.with_name("mirror-at-first")
    if not first.exists():
        shutil.copytree(mirror, first)
    for other in (mirror, prepared.store.with_name("mirror-copy")):
        shutil.rmtree(other, ignore_errors=True)
    shutil.copytree(first, mirror)
    old = value_at(prepared.spec, leaf)
    return Case(folder, leaf, old, changed(leaf, old))


def written(folder: Path, spec: Mapping) -> Path:
    path = folder / "eval.yaml"
    path.write_text(yaml.safe_dump(spec, sort_keys=False))
    return path


def script(spec: Mapping, store: Path) -> None:
    """The spec as a script would write it: tasks as objects, models as mappings, the rest by name."""
    rest = {name: value for name, value in spec.items() if name not in {"tasks", "models"}}
    tasks = []
    for fields in spec["tasks"]:
        own = {name: value for name, value in fields.items() if name not in {"name", "dataset"}}
        own["dataset"] = {name: value for name, value in fields["dataset"].items() if name != "path"}
        tasks.append(holdfast.Task(fields["name"], fields["dataset"]["path"], **own))
    holdfast.run(tasks, spec["models"], id=RUN, store=str(store), **rest).close()


def lineage(run_folder: Path) -> list[tuple[str, Any, Any]]:
    """What the header of spec.yaml says of resumes: field, old value, new value."""
    told = _RESUMED.findall((run_folder / "spec.yaml").read_text())
    return [(field, json.loads(old), json.loads(new)) for field, old, new in told]


def resumes(case: Case) -> list[list[Mapping]]:
    """The changes in each `run.resumed` of the journal."""
    return [data.get("changes", []) for kind, data in records(case.store, RUN) if kind == "run.resumed"]


def check(case: Case, bring: Callable[[], Done]) -> None:
    """What the field's class promises, of a resume that brings the change. Reducers, groups and others change
    what is read from scores, and no score: there is nothing to score again.
    """
    declared = "" if case.leaf.name in {"reduce", "group", "macro", "failed"} else case.leaf.declared
    {"result": check_refused, "evaluation": check_new_evaluation}.get(declared, check_accepted)(case, bring)


def check_refused(case: Case, bring: Callable[[], Done]) -> None:
    before = snapshot(case.store)
    done = bring()
    assert done.code == 3, done.said
    assert snapshot(case.store) == before
    assert "(result)" in done.err
    assert f"holdfast fork {RUN}" in done.err
    if case.leaf.name == "name" and case.leaf.place[0] != "roles":  # a part of another name is another part
        above = case.leaf.place[0]
        assert {f"{above}.{case.old}", f"{above}.{case.new}"} <= set(re.findall(r"^(\S+) \(result\)$", done.err, re.M))
        return
    for field, old, new in differing(case.leaf.field, case.old, case.new):
        assert f"{field} (result)\n  stored: {old!r}\n  given:  {new!r}\n" in done.err


def differing(field: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Of two mappings only what differs is reported."""
    if not isinstance(old, dict) or not isinstance(new, dict):
        yield field, old, new
        return
    for name in {**old, **new}:
        if old.get(name) != new.get(name):
            yield from differing(f"{field}.{name}", old.get(name), new.get(name))


def check_accepted(case: Case, bring: Callable[[], Done]) -> None:
    before, counted = without_prices(case), shown(RUN, case.store)
    done = bring()
    assert done.code == 0, done.said
    check_recorded(case)
    assert without_prices(case) == before
    after = shown(RUN, case.store)
    assert (after["steps"], after["status"], after["evaluations"]) == (
        counted["steps"],
        "completed",
        counted["evaluations"],
    )


def without_prices(case: Case) -> list[dict[str, Any]]:
    """What a run found; what that cost, and what is in one group, are no part of it."""
    return [{**line, "cost_usd": None, "group": ""} for line in exported(RUN, case.store)]


def check_new_evaluation(case: Case, bring: Callable[[], Done]) -> None:
    before, counted = exported(RUN, case.store), shown(RUN, case.store)
    done = bring()
    assert done.code == 0, done.said
    check_recorded(case)
    after, told = exported(RUN, case.store), shown(RUN, case.store)
    assert told["steps"] == counted["steps"], "the model was asked again"
    first, second = told["evaluations"]
    assert [first] == counted["evaluations"]
    scorers = {"close", "exact_match"} if case.leaf.name == "scorers" else {"numeric"}
    for was, now in zip(before, after, strict=True):
        assert {**was, "scores": None, "reasons": None} == {**now, "scores": None, "reasons": None}
        assert set(was["scores"]) == {"numeric"}
        assert set(now["scores"]) == scorers, "scores of two evaluations are blended"
    assert scores_of(case.run, first) == [line["scores"] for line in before]
    assert scores_of(case.run, second) == [line["scores"] for line in after]


def check_recorded(case: Case) -> None:
    """In the journal, in spec.yaml's header and in its body: this change, once, and no other. A newer version of a
    benchmark in a spec is no change: the stored one is used.
    """
    if case.leaf.field.endswith("benchmark.version") and not resumes(case):
        assert lineage(case.run) == []
        return
    assert resumes(case) == [[case.change]]
    assert lineage(case.run) == [(case.leaf.field, case.old, case.new)]
    body = msgspec.convert(yaml.safe_load((case.run / "spec.yaml").read_text()), Spec)
    assert value_at(body, case.leaf) == case.new


def scores_of(run_folder: Path, evaluation: str) -> list[Mapping]:
    """What one evaluation says of each key, in the order of the plan."""
    index = Index(str(run_folder))
    try:
        found: dict[int, Mapping] = {}
        for row in index.scores(evaluation):
            found.setdefault(row.o, {})[row.scorer] = row.value
    finally:
        index.close()
    return [found[ordinal] for ordinal in sorted(found)]


def command_for(case: Case) -> tuple[str | Path, ...]:
    """The first words of the command: another experiment is another folder, so only the run's name leads to it."""
    return ("resume", RUN) if case.leaf.name == "experiment" else ("run",)


def bring_file(case: Case, spec: Mapping, command: Command = call) -> Done:
    """`holdfast run CHANGED --id r`."""
    path = written(case.folder, spec)
    named = () if case.leaf.name == "experiment" else ("--id", RUN)
    return command(*command_for(case), path, *named, "--store", case.store, cwd=case.folder)


def spread(every: list[Leaf], count: int) -> list[Leaf]:
    """So many of them, from all over the spec."""
    return every[:: max(1, len(every) // count)][:count]


def thinned(every: list[Leaf], quick: list[Leaf]) -> list[Any]:
    """All of them; only some in the quick suite."""
    return [leaf if leaf in quick else pytest.param(leaf, marks=pytest.mark.long) for leaf in every]


def one_of_each(every: list[Leaf]) -> list[Leaf]:
    """One field of each class in each large part of a spec. What a change of any field means is tested in
    tests/unit/spec/test_drift.py; here, that the command does so.
    """
    return list({(leaf.declared, leaf.place[0]): leaf for leaf in every}.values())


@pytest.mark.parametrize("leaf", thinned(LEAVES, one_of_each(LEAVES)), ids=str)
def test_a_changed_spec_is_met_as_the_class_of_its_field_says(prepared: Prepared, tmp_path: Path, leaf: Leaf) -> None:
    case = copied(prepared, tmp_path, leaf)
    check(case, lambda: bring_file(case, with_value(prepared.base, leaf.place, case.new), run))


@pytest.mark.parametrize("leaf", thinned(LEAVES, spread(LEAVES, 4)), ids=str)
def test_a_field_set_on_the_command_line_is_met_in_the_same_way(prepared: Prepared, tmp_path: Path, leaf: Leaf) -> None:
    case = copied(prepared, tmp_path, leaf)
    setting = f"{leaf.setting}={json.dumps(case.new)}"
    check(case, lambda: call("resume", RUN, "--store", case.store, "--set", setting, cwd=tmp_path))


@pytest.mark.parametrize("leaf", thinned(IN_DEFAULTS, spread(IN_DEFAULTS, 3)), ids=str)
def test_a_change_written_in_defaults_is_met_in_the_same_way(prepared: Prepared, tmp_path: Path, leaf: Leaf) -> None:
    case = copied(prepared, tmp_path, leaf)
    check(case, lambda: bring_file(case, in_defaults(prepared.effective, leaf.place, case.new)))


@pytest.mark.parametrize("leaf", thinned(IN_PYTHON, spread(IN_PYTHON, 3)), ids=str)
def test_a_change_made_in_python_is_met_in_the_same_way(
    scripted: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leaf: Leaf
) -> None:
    """But for `experiment`: in Python nothing but the experiment and the id leads to a run."""
    monkeypatch.chdir(tmp_path)
    case = copied(scripted, tmp_path, leaf)
    spec = with_value(scripted.base, leaf.place, case.new)
    if leaf.declared != "result":
        check(case, lambda: python(spec, case.store))
        return
    before = snapshot(case.store)
    with pytest.raises(DriftError) as refused:
        script(spec, case.store)
    assert snapshot(case.store) == before
    told = [msgspec.to_builtins(change) for change in refused.value.changes]
    assert {change["kind"] for change in told} == {"result"}
    assert case.change in told or leaf.name == "name"


def python(spec: Mapping, store: Path) -> Done:
    script(spec, store)
    return Done(0, "", "")


@pytest.mark.parametrize("leaf", thinned(spread(ACCEPTED, 6), spread(ACCEPTED, 6)[::2]), ids=str)
def test_an_accepted_change_is_reported_once_and_the_way_back_is_reported_too(
    prepared: Prepared, tmp_path: Path, leaf: Leaf
) -> None:
    case = copied(prepared, tmp_path, leaf)
    there, back = with_value(prepared.base, leaf.place, case.new), prepared.base
    for spec in (there, there, back, back):
        assert bring_file(case, spec).code == 0
    assert [[change["new"] for change in changes] for changes in resumes(case)] == [[case.new], [case.old]]
    assert lineage(case.run) == [
        (leaf.field, case.old, case.new),
        (leaf.field, case.new, case.old),
    ]


def test_one_refused_field_among_accepted_ones_refuses_all_and_only_it_is_named(
    prepared: Prepared, tmp_path: Path
) -> None:
    by_name = {str(leaf): leaf for leaf in LEAVES}
    case = copied(prepared, tmp_path, by_name["seed"])
    spec = prepared.base
    for leaf in (*ACCEPTED, by_name["tasks.sums.scorers"]):
        if leaf.name != "experiment":
            spec = with_value(spec, leaf.place, changed(leaf, value_at(prepared.spec, leaf)))
    check_refused(case, lambda: bring_file(case, with_value(spec, ("seed",), case.new)))
    assert call("run", written(tmp_path, spec), "--id", RUN, "--store", case.store, cwd=tmp_path).code == 0


def test_every_refused_field_is_named(prepared: Prepared, tmp_path: Path) -> None:
    case = copied(prepared, tmp_path, LEAVES[0])
    wanted = [leaf for leaf in LEAVES if leaf.declared == "result" and leaf.name != "name"]
    spec = prepared.base
    for leaf in wanted:
        spec = with_value(spec, leaf.place, changed(leaf, value_at(prepared.spec, leaf)))
    before = snapshot(case.store)
    done = call("run", written(tmp_path, spec), "--id", RUN, "--store", case.store, cwd=tmp_path)
    assert done.code == 3
    values = [(leaf.field, value_at(prepared.spec, leaf), leaf) for leaf in wanted]
    told = [name for field, old, leaf in values for name, _, _ in differing(field, old, changed(leaf, old))]
    assert re.findall(r"^(\S+) \(result\)$", done.err, re.MULTILINE) == told
    assert snapshot(case.store) == before


def reordered(value: Any) -> Any:
    """The keys of every mapping from the last to the first; lists as they are."""
    if isinstance(value, dict):
        return {name: reordered(each) for name, each in reversed(value.items())}
    return list(map(reordered, value)) if isinstance(value, list) else value


def moved_to_defaults(effective: Mapping) -> Mapping:
    """Whatever all models and roles, or all tasks, have in common."""
    made: Mapping = json.loads(json.dumps(effective))
    defaults: Mapping = {}
    for parts in ([*made["models"], *made["roles"].values()], made["tasks"]):
        for name, value in list(parts[0].items()):
            if name not in {"name", "params"} and all(part[name] == value for part in parts):
                defaults[name] = value
                for part in parts:
                    del part[name]
    assert {"provider", "max_connections", "dataset", "scorers", "repeats"} <= set(defaults)
    return {"defaults": defaults, **made}


def relative(base: Mapping) -> Mapping:
    made: Mapping = json.loads(json.dumps(base))
    for part in (made["tasks"][0]["dataset"], made["tasks"][0]["fewshot"]):
        part["path"] = Path(part["path"]).name
    return made


def dump(spec: Mapping) -> str:
    return yaml.safe_dump(spec, sort_keys=False)


def commented(spec: Mapping) -> str:
    return "# mine\n\n" + "".join(f"{line}\n# a remark\n\n" for line in dump(spec).splitlines())


def with_anchor(spec: Mapping) -> str:
    """The second model and the role repeat the first one by reference."""
    first, second = spec["models"]
    shared = json.dumps({name: value for name, value in first.items() if name != "name"})
    rest = {name: value for name, value in spec.items() if name not in {"models", "roles"}}
    return (
        f"models:\n- &one {{name: {first['name']}, <<: {shared}}}\n- {{<<: *one, name: {second['name']}}}\n"
        f"roles: {{judge: {{<<: *one, name: judge}}}}\n{dump(rest)}"
    )


def from_environment(spec: Mapping) -> str:
    return dump(with_value(spec, ("tasks", 0, "prompt"), "${VERB:-Compute}: {question}"))


REWRITTEN: dict[str, Callable[[Prepared], str]] = {
    "as it was": lambda prepared: dump(prepared.base),
    "keys in another order": lambda prepared: dump(reordered(prepared.base)),
    "on one line": lambda prepared: json.dumps(prepared.base),
    "with comments": lambda prepared: commented(prepared.base),
    "with every value spelled out": lambda prepared: dump(prepared.effective),
    "spelled out, in another order": lambda prepared: dump(reordered(prepared.effective)),
    "all that can be moved to defaults": lambda prepared: dump(moved_to_defaults(prepared.effective)),
    "with empty parts": lambda prepared: dump({**prepared.base, "defaults": {}, "limits": {"sample": {}}}),
    "with anchors": lambda prepared: with_anchor(prepared.base),
    "with a value from the environment": lambda prepared: from_environment(prepared.base),
    "with relative paths": lambda prepared: dump(relative(prepared.base)),
}


@pytest.mark.parametrize("way", REWRITTEN)
def test_the_same_spec_written_in_another_way_is_no_drift(prepared: Prepared, tmp_path: Path, way: str) -> None:
    """A complete run does not change; a resume of it reports nothing."""
    case = copied(prepared, tmp_path, LEAVES[0])
    path = prepared.store.parent / f"{REWRITTEN[way].__name__}-{tmp_path.name}.yaml"  # beside its data
    path.write_text(REWRITTEN[way](prepared))
    command = ("run", path, "--id", RUN, "--store", case.store)
    before = snapshot(case.store)
    done = call(*command, cwd=tmp_path)
    assert done.code == 0, done.err
    assert snapshot(case.store) == before
    cut_after(case.store, lambda kind, data: kind != "sample.finished", RUN)
    shutil.rmtree(prepared.store.with_name("mirror"))  # or it would bring back what was cut off
    done = call(*command, cwd=tmp_path)
    assert done.code == 0, done.err
    assert resumes(case) == [[]]
    assert lineage(case.run) == []
    assert shown(RUN, case.store)["status"] == "completed"


@pytest.mark.parametrize("leaf", thinned(spread(LEAVES, 12), spread(LEAVES, 12)[::4]), ids=str)
def test_setting_a_field_to_what_it_is_is_no_drift(prepared: Prepared, tmp_path: Path, leaf: Leaf) -> None:
    case = copied(prepared, tmp_path, leaf)
    before = snapshot(case.store)
    setting = f"{leaf.setting}={json.dumps(case.old)}"
    done = call("resume", RUN, "--store", case.store, "--set", setting, cwd=tmp_path)
    assert done.code == 0, done.err
    assert snapshot(case.store) == before


def test_the_same_spec_in_python_is_no_drift(
    prepared: Prepared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    case = copied(prepared, tmp_path, LEAVES[0])
    before = snapshot(case.store)
    script(prepared.base, case.store)
    assert snapshot(case.store) == before


def test_a_run_begun_in_python_continues_with_its_scorers_by_the_command(scripted: Prepared, tmp_path: Path) -> None:
    case = copied(scripted, tmp_path, LEAVES[0])
    wanted = exported(RUN, scripted.store)
    cut_after(case.store, lambda kind, data: kind != "sample.finished" or data["o"] < 2, RUN)
    done = call("resume", RUN, "--store", case.store, cwd=tmp_path)
    assert done.code == 0, done.err
    lines = exported(RUN, case.store)
    assert [line["scores"] for line in lines] == [line["scores"] for line in wanted]
    assert lineage(case.run) == []


SOLVER = "async def ask(sample, ctx):\n    return await ctx.generate()\n"
SCORER = "def judge(sample, answer):\n    return {}\n"


def write_own_code(folder: Path, prepared: Prepared) -> Path:
    """A spec whose solver and scorer are modules beside it."""
    (folder / "own_solver_of_drift.py").write_text(SOLVER)
    (folder / "own_scorer_of_drift.py").write_text(SCORER.format("0"))
    task = {**prepared.base["tasks"][0], "solver": "own_solver_of_drift:ask", "scorers": ["own_scorer_of_drift:judge"]}
    return written(folder, {**prepared.base, "tasks": [task], "mirror": None})  # of its own store, and a run of its own


def test_changed_code_of_a_solver_is_refused_and_changed_code_of_a_scorer_is_a_new_evaluation(
    prepared: Prepared, tmp_path: Path
) -> None:
    spec = write_own_code(tmp_path, prepared)
    command = ("run", spec, "--id", RUN, "--store", tmp_path / "runs")
    assert run(*command, cwd=tmp_path).code == 0
    (tmp_path / "own_solver_of_drift.py").write_text(f"{SOLVER}# another\n")
    before = snapshot(tmp_path / "runs")
    refused = run(*command, cwd=tmp_path)
    assert refused.code == 3
    assert "own_solver_of_drift:ask" in refused.err
    assert snapshot(tmp_path / "runs") == before
    (tmp_path / "own_solver_of_drift.py").write_text(SOLVER)
    (tmp_path / "own_scorer_of_drift.py").write_text(SCORER.format("1"))
    steps = shown(RUN, tmp_path / "runs")["steps"]
    accepted = run(*command, cwd=tmp_path)
    assert accepted.code == 0, accepted.err
    told = shown(RUN, tmp_path / "runs")
    assert told["steps"] == steps
    first, second = told["evaluations"]
    place = tmp_path / "runs" / "drift" / RUN
    assert {line["scores"]["judge"] for line in exported(RUN, tmp_path / "runs")} == {1}
    assert [set(each.values()) for each in scores_of(place, first)] == [{0}] * 6
    assert [set(each.values()) for each in scores_of(place, second)] == [{1}] * 6


def test_other_rows_under_the_same_path_are_refused_with_the_sample_that_differs(tmp_path: Path) -> None:
    base = full_spec(tmp_path)
    for selection in ("shuffle", "sample"):  # they would choose other rows, or the same ones in another file order
        del base["tasks"][0]["dataset"][selection]
    command = ("run", written(tmp_path, base), "--id", RUN, "--store", tmp_path / "runs")
    assert call(*command, cwd=tmp_path).code == 0
    data = tmp_path / "sums.jsonl"
    lines = data.read_text().splitlines(keepends=True)
    before = snapshot(tmp_path / "runs")
    changes = {
        "a row changed": [*lines[:1], lines[1].replace("2 + 14", "2 + 15"), *lines[2:]],
        "a row less": lines[:2],
        "a row more": [*lines, lines[0].replace("s0001", "s0009")],
        "rows in another order": lines[::-1],
    }
    for name, other in changes.items():
        data.write_text("".join(other))
        done = call(*command, cwd=tmp_path)
        assert done.code == 3, (name, done.said)
        assert "tasks.sums" in done.err, name
        assert re.search(r"s000\d|order", done.err), name
        assert snapshot(tmp_path / "runs") == before, name


def test_the_matrix_reaches_every_type_of_the_spec() -> None:
    reached = {leaf.owner.__name__ for leaf in LEAVES}
    assert {"Spec", "Model", "Task", "Dataset", "Fewshot", "SampleLimits", "Concurrency"} <= reached
    assert {leaf.declared for leaf in LEAVES} == {"result", "evaluation", "throughput", "place"}
    assert len({leaf.place for leaf in LEAVES}) == len(LEAVES) > 55


def test_a_field_whose_type_has_no_rule_fails_with_what_to_do() -> None:
    leaf = Leaf(("curious",), Spec, "result", set[int])
    with pytest.raises(AssertionError, match=r"curious: no rule makes another value .*; add one"):
        changed(leaf, set())
