"""The scales of scores: which values a scorer can give.

Built-in scorers have their scales in the table below, depending on their arguments. A user's scorer declares its own
(`@scorer(scale=…)`). Both are found for a scorer in memory and for a recorded identity, so that runs of earlier
versions have scales too. Invariant: a scale contains every value that the scorer can give; None if that is unknown.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.errors import ScorerError
from holdfast.records import NAMES_IN_0_1_0
from holdfast.score.definition import Scorer, read_scale
from holdfast.spec import Task, parse_reductions
from holdfast.stats import BOOL, COUNT, LABEL, NUMBER, UNIT, Scale

_DEEPEST = 50
"""A record may come from somebody else: this bounds the recursion into parts."""
_COSINE = Scale("range", -1.0, 1.0)
_RATINGS = 5
"""The default of the argument `scale` of `rubric`."""
_CORRECT = "correct"
_CORRECT_ROW = f" {_CORRECT}"
COMBINING = ("all_of", "any_of", "none_of", "weighted")
"""Scorers whose parts must have the same scale."""


class ScorerScales(msgspec.Struct, frozen=True):
    """The scales of one scorer's scores, by the part of their names behind the scorer's. "": the score that
    has exactly that name.
    """

    parts: dict[str, Scale | None]
    others: Scale | None = None
    """The scale of scores that are not in `parts`."""
    is_open: bool = False
    """Whether there may be such scores: nobody knows the names of the scores of a user's scorer."""

    def of(self, part: str) -> Scale | None:
        return self.parts.get(part, self.others)

    def counted(self) -> dict[str, Scale | None]:
        """The scales of the scores that count if the scorer is a part of another one: the one with the scorer's name,
        if there is one, without single votes of a panel.
        """
        if "" in self.parts or (self.is_open and not self.parts):
            return {"": self.of("")}
        return self.parts


class EvaluationScales:
    """The scales of all scores of one task in an evaluation. Made by `scales_of`."""

    def __init__(self, scorers: Mapping[str, ScorerScales], weights: Mapping[str, str] | None = None) -> None:
        self._scorers = scorers
        self.weights: Mapping[str, str] = weights or {}
        """By scorer: the column of the rows by which its scores weigh; without scorers whose scores weigh equally."""

    @property
    def names(self) -> tuple[str, ...]:
        """Of the scorers."""
        return tuple(self._scorers)

    def of(self, score: str) -> Scale | None:
        """The scale of a score by its recorded name (`rubric`, `rubric.a`, `mine.part`), or of the row of a report that
        counts correct grades (`grade correct`); None if it is unknown.
        """
        if score.endswith(_CORRECT_ROW) and score not in self._scorers:
            score = f"{score.removesuffix(_CORRECT_ROW)}.{_CORRECT}"
        name, part = score, ""
        while name not in self._scorers:  # a scorer's own name may contain dots, so the longest name wins
            name, dot, _ = name.rpartition(".")
            if not dot:
                return None
            part = score[len(name) + 1 :]
        return self._scorers[name].of(part)


def scales_of(scorers: Iterable[Mapping[str, Any]], task: str) -> EvaluationScales:
    """The scales of a task's scores. `scorers`: as an evaluation records them, by any version."""
    own = {str(each.get("name", "")): each for each in scorers if each.get("task", task) == task}
    weights = {name: WEIGHTS[function] for name, each in own.items() if (function := _recorded(each)[0]) in WEIGHTS}
    return EvaluationScales({name: scorer_scales(each) for name, each in own.items()}, weights)


def scorer_scales(scorer: Any, depth: int = 0) -> ScorerScales:
    """The scales of a scorer, or of a recorded identity."""
    if isinstance(scorer, Scorer):
        from holdfast.score.fingerprints import built_in_name  # loads the modules that digest code

        name, declared = built_in_name(scorer), scorer.scale
        args: Mapping[str, Any] = scorer.args
    elif isinstance(scorer, Mapping) and depth <= _DEEPEST:
        name, args, declared = _recorded(scorer)
    else:
        return _UNKNOWN
    known = BUILT_IN_SCALES.get(name)
    if known is None:
        return _declared(declared)
    if isinstance(known, Scale):
        return ScorerScales({"": known})
    try:
        return known(args, depth + 1)
    except (KeyError, TypeError, ValueError, AttributeError):  # a record with arguments that the scorer does not take
        return _UNKNOWN


_UNKNOWN = ScorerScales({}, is_open=True)


def wrong_value(scorer: Scorer) -> bool | str:
    """The score of an answer that counts as wrong without being scored. Among labels it is a label: a single number
    would hide the labels of a report.
    """
    return "wrong" if scorer_scales(scorer).of("") == LABEL else False


def _recorded(identity: Mapping[str, Any]) -> tuple[str, Mapping[str, Any], Any]:
    """Name of a built-in, arguments and declared scale of a recorded identity."""
    function, args = str(identity.get("function", "")), identity.get("args")
    name = NAMES_IN_0_1_0.get(function, function)
    try:
        declared = read_scale(identity["scale"], "") if "scale" in identity else None
    except ScorerError:  # the record was edited
        declared = None
    return name, args if isinstance(args, Mapping) else {}, declared


def _declared(scale: Any) -> ScorerScales:
    if isinstance(scale, dict):
        return ScorerScales(scale, is_open=True)
    return ScorerScales({}, scale, is_open=True)


def _rubric(args: Mapping[str, Any], depth: int) -> ScorerScales:
    """1 to `scale`; bool with `pass_at`. A vote of a panel: 1 to `scale`."""
    ratings = Scale("range", 1.0, float(args.get("scale", _RATINGS)))
    combined = ratings if args.get("pass_at") is None else BOOL
    criteria = args.get("criteria")
    names = list(criteria) if isinstance(criteria, Mapping) else [""]
    return ScorerScales({**dict.fromkeys(names, combined), **_votes(names, args, ratings)})


def _pairwise(args: Mapping[str, Any], depth: int) -> ScorerScales:
    """0 to 1."""
    return ScorerScales({"": UNIT, **_votes([""], args, UNIT)})


def _grades(args: Mapping[str, Any], depth: int) -> ScorerScales:
    """label"""
    return ScorerScales({"": LABEL, _CORRECT: BOOL})


def _votes(names: Sequence[str], args: Mapping[str, Any], scale: Scale) -> dict[str, Scale]:
    """The scale of each vote of a panel. A single judge has no vote beside the score."""
    roles = args.get("roles") or []
    return {f"{name}.{role}" if name else role: scale for name in names for role in roles} if len(roles) > 1 else {}


def _lowest_or_highest(args: Mapping[str, Any], depth: int) -> ScorerScales:
    """That of its parts. With `normalise`: 0 to 1."""
    return ScorerScales({"": _combined(args, depth)})


def _one_minus_highest(args: Mapping[str, Any], depth: int) -> ScorerScales:
    """1 minus that of its parts. With `normalise`: 0 to 1."""
    scale = _combined(args, depth)
    if scale is not None and scale.kind == "range" and scale.lowest is not None and scale.highest is not None:
        scale = Scale("range", 1 - scale.highest, 1 - scale.lowest)
    return ScorerScales({"": NUMBER if scale == COUNT else scale})


def _mean(args: Mapping[str, Any], depth: int) -> ScorerScales:
    """That of its parts; 0 to 1 for bool, and with `normalise`."""
    scale = _combined(args, depth)
    return ScorerScales({"": UNIT if scale == BOOL else scale})


def _chosen(args: Mapping[str, Any], depth: int) -> ScorerScales:
    """That of `then` and `otherwise`."""
    branches = [args[each] for each in ("then", "otherwise") if args.get(each) is not None]
    found = [scorer_scales(each, depth) for each in branches]
    parts = list(dict.fromkeys(part for each in found for part in each.parts))
    able = {part: [each.of(part) for each in found if part in each.parts or each.is_open] for part in parts}
    opened = [each.others for each in found if each.is_open]
    return ScorerScales({part: _hull(able[part]) for part in parts}, _hull(opened), bool(opened))


def _combined(args: Mapping[str, Any], depth: int) -> Scale | None:
    """The scale that contains the scales of all parts."""
    scales = [scale for part in args["of"] for scale in scorer_scales(part, depth).counted().values()]
    if args.get("normalise"):
        return BOOL if all(scale == BOOL for scale in scales) else UNIT
    return _hull(scales)


def _hull(scales: Sequence[Scale | None]) -> Scale | None:
    """The narrowest scale that contains all of these; None if one is unknown, or only some are labels."""
    known = [each for each in scales if each is not None]
    if not known or len(known) < len(scales):
        return None
    if len(set(known)) == 1:
        return known[0]
    if LABEL in known:
        return None
    lowest = [each.lowest for each in known if each.lowest is not None]
    highest = [each.highest for each in known if each.highest is not None]
    if len(highest) == len(known) == len(lowest):
        return Scale("range", min(lowest), max(highest))
    return COUNT if len(lowest) == len(known) and min(lowest) >= 0 else NUMBER


WEIGHTS = {"ifeval_instruction": "instruction_id_list"}
"""Built-in scorers that give the share of several parts of a sample: the column of the rows that lists these parts. The
mean weighs each score by their number, so it is the share of all parts."""
_Rule = Callable[[Mapping[str, Any], int], ScorerScales]
BUILT_IN_SCALES: dict[str, Scale | _Rule] = {
    "acc": BOOL,
    "acc_bytes": BOOL,
    "acc_norm": BOOL,
    "all_of": _lowest_or_highest,
    "any_of": _lowest_or_highest,
    "at_least": BOOL,
    "bert_score": _COSINE,  # without rescaling: a mean of cosines
    "bleu": UNIT,
    "choice": BOOL,
    "chrf": UNIT,
    "code_tests": BOOL,
    "codebleu": UNIT,
    "consistency": UNIT,
    "drop_em": BOOL,
    "drop_f1": UNIT,
    "edit_similarity": UNIT,
    "embedding_similarity": _COSINE,
    "exact_match": BOOL,
    "grade": _grades,
    "ifeval_instruction": UNIT,
    "ifeval_prompt": BOOL,
    "includes": BOOL,
    "json_field": BOOL,
    "json_schema": BOOL,
    "length": COUNT,
    "length_difference": NUMBER,
    "maths": BOOL,
    "mc2": UNIT,
    "meteor": UNIT,
    "none_of": _one_minus_highest,
    "numeric": BOOL,
    "pairwise": _pairwise,
    "regex": BOOL,
    "rouge": UNIT,
    "row_is": BOOL,
    "rubric": _rubric,
    "taxonomy": LABEL,
    "token_f1": UNIT,
    "weighted": _mean,
    "when": _chosen,
}
"""The scale of each built-in scorer, or how to compute its scales from its arguments. The docstrings of these
functions are shown in docs/scorers.md."""


def is_on_scale(scale: Scale, value: bool | float | str) -> bool:
    """Whether a scale contains a value. True and False are 1 and 0."""
    if isinstance(value, str) or scale.kind == "label":
        return isinstance(value, str) and scale.kind == "label"
    if scale.kind == "bool":
        return value in (0, 1)
    if scale.kind == "count":
        return value >= 0 and value == int(value)
    return (scale.lowest is None or value >= scale.lowest) and (scale.highest is None or value <= scale.highest)


def describe_scale(scale: Scale | None) -> str:
    """A scale in words, as in "1 to 5"."""
    if scale is None:
        return "unknown"
    return f"{scale.lowest:g} to {scale.highest:g}" if scale.kind == "range" else scale.kind


def mixed_scales(scorer: Scorer) -> str:
    """What is wrong with the scales of parts that a scorer combines, at any depth; empty if nothing. Parts without a
    scale are not refused.
    """
    from holdfast.score.fingerprints import built_in_name

    if built_in_name(scorer) in COMBINING and not scorer.args.get("normalise"):
        scales = _counted(scorer.args["of"])
        known = {scale for scale in scales.values() if scale is not None}
        if len(known) > 1 and known != {BOOL, UNIT}:
            shown = ", ".join(f"{name}: {describe_scale(scale)}" for name, scale in scales.items())
            return (
                f"{scorer.name} combines different scales ({shown}); make a part right or wrong with at_least: "
                "{of: …, value: …}, or map each scale to 0..1 with normalise: true"
            )
    return next(filter(None, map(mixed_scales, scorer.parts())), "")


def why_not_normalised(of: Sequence[Scorer]) -> str:
    """Why the values of these parts cannot be mapped to 0..1; empty if they can."""
    for name, scale in _counted(of).items():
        if scale is None:
            return f"normalise: {name} declares no scale; declare it, as in @scorer(scale=(1, 5))"
        if scale.width is None:
            return f"normalise: {name} gives a {scale.kind}, which has no lowest and highest value"
    return ""


def normalised(part: Scorer, values: Mapping[str, bool | float | None]) -> dict[str, bool | float | None]:
    """Map the values of a part, by name of the score, to 0..1. Bools stay bools."""
    scales, found = scorer_scales(part), dict(values)
    for name, value in values.items():
        scale = scales.of(name.removeprefix(part.name).removeprefix("."))
        if scale is None or scale.lowest is None or not scale.width:
            raise ValueError(f"{name} has no scale with a lowest and a highest value, so it cannot be normalised")
        if value is not None and not isinstance(value, bool):
            found[name] = (value - scale.lowest) / scale.width
    return found


def _counted(of: Sequence[Scorer]) -> dict[str, Scale | None]:
    """The scales that count in a combination, by name of the score."""
    scales = [(each.name, part, scale) for each in of for part, scale in scorer_scales(each).counted().items()]
    return {f"{name}.{part}" if part else name: scale for name, part, scale in scales}


def scale_hints(scorers: Iterable[Scorer]) -> list[str]:
    """One line for each of the user's scorers whose scale is needed and not declared."""
    names = dict.fromkeys(each.name for scorer in scorers for each in _undeclared(scorer))
    advice = 'declare its scale, @scorer(scale=(1, 5)) or "bool", so that intervals stay on it'
    return [f"scorer {name}: {advice}" for name in names]


def threshold_hints(task: Task, scorers: Sequence[Scorer], place: str) -> list[str]:
    """One line for each reducer of a task that is always 1, because every score of a scorer reaches its threshold."""
    found: dict[str, None] = {}
    for how in parse_reductions(task.reduce, place):
        for scorer in scorers if how.k else ():
            for scale in scorer_scales(scorer).counted().values():
                if scale is not None and scale.lowest is not None and how.threshold <= scale.lowest:
                    right = f"a score of {how.threshold:g} or more is right, and its scale is {describe_scale(scale)}"
                    example = f"{{{how.name}: {{k: {how.k}, threshold: {scale.highest or 1:g}}}}}"
                    verdict = f"{how.label} of {scorer.name} is always 1: {right}"
                    found[f"{place}: {verdict}; set a threshold, as in {example}"] = None
    return list(found)


def _undeclared(scorer: Scorer) -> Iterator[Scorer]:
    from holdfast.score.fingerprints import built_in_name

    scales = scorer_scales(scorer)
    if not built_in_name(scorer):
        if scorer.scale is None:
            yield scorer
    elif None in (*scales.parts.values(), scales.others if scales.is_open else BOOL):
        for part in scorer.parts():
            yield from _undeclared(part)
