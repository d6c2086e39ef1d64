"""The evaluations of a run: what pages call them, and links to choose one."""

import shlex
from collections.abc import Callable, Iterator, Mapping

from holdfast.view.markup import Markup, h
from holdfast.view.sources import ViewedRun

_ADVICE = "; for another, add --evaluation"


def evaluation_labels(run: ViewedRun) -> dict[str, str]:
    """By id, the oldest first: name and time."""
    begun = run.index.story.evaluated
    found = {}
    for each, name in run.evaluation_names().items():
        time = begun.get(each, "")[:16].replace("T", " ")
        found[each] = f"{name}, {time}" if time else name
    return found


def evaluation_choice(
    labels: Mapping[str, str], shown: str, address: Callable[[str], str], notes: Mapping[str, str] | None = None
) -> Markup | None:
    """Links to the same page with each evaluation, if there are several. `shown`: the one on this page. `address`: of
    the page with an evaluation. `notes`: what to say about each.
    """
    if len(labels) < 2:
        return None
    items = list(_items(labels, shown, address, notes or {}))
    title = h("span", "Evaluations", class_="quiet")
    return h("nav", title, h("ul", items), class_="evaluations", aria_label="Evaluations")


def evaluation_note(labels: Mapping[str, str], shown: str, run_id: str) -> Markup | None:
    """For a static copy of a run with several evaluations: which one it shows, and how to copy another."""
    if len(labels) < 2:
        return None
    others = ", ".join(f"{each} ({label})" for each, label in labels.items() if each != shown)
    return h(
        "p",
        f"Scores of the evaluation {shown} ({labels.get(shown, '')}), one of {len(labels)}. To copy another, ",
        h("code", f"holdfast view {shlex.quote(run_id)} --bundle DIR --evaluation ID"),
        f" with one of: {others}.",
        class_="quiet",
    )


def without_option(warning: str) -> str:
    """A warning of `compare` without the option that it advises: a page has links instead."""
    return warning.removesuffix(_ADVICE)


def _items(
    labels: Mapping[str, str], shown: str, address: Callable[[str], str], notes: Mapping[str, str]
) -> Iterator[Markup]:
    for each, label in labels.items():
        chosen = "true" if each == shown else None
        link = h("a", label, href=address(each), title=f"evaluation {each}", aria_current=chosen)
        yield h("li", link, h("span", f" {notes[each]}", class_="quiet") if notes.get(each) else None)
