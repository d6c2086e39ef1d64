"""The spec of a run as YAML, every spec that a resume or an extension brought, and what each of them changed."""

import difflib

import msgspec

from holdfast.records import Change
from holdfast.view.layout import table
from holdfast.view.links import Links
from holdfast.view.markup import Child, Markup, h, join
from holdfast.view.page import Body, PageRequest
from holdfast.view.pages.lineage import change_item
from holdfast.view.sources import Durability, RunRef, RunStatus
from holdfast.view.travel import ref_of

_LINES_MAX = 3000


class SpecStep(msgspec.Struct, frozen=True):
    """One spec that the run has had."""

    at: str
    began: str
    """started, resumed, extended or corrected."""
    version: str
    changes: tuple[Change, ...]
    text: str
    diff: list[str]
    """From the spec before, as a unified diff without its head."""


class SpecView(msgspec.Struct, frozen=True):
    """Everything that the page shows."""

    ref: RunRef
    status: RunStatus
    durability: Durability
    text: str
    """The spec in force, with the history as comments: the content of spec.yaml."""
    versions: list[SpecStep]
    """The oldest first."""


def load(request: PageRequest) -> SpecView:
    ref = ref_of(request)
    with request.sources.open(ref) as run:
        versions, text = run.spec_versions(), run.spec_text()
        status, durability = run.shown_status(), run.durability()
    found, before = list[SpecStep](), ""
    for each in versions:
        lines = _diff(before, each.text) if before else []
        found.append(SpecStep(each.at, each.began, each.version, each.changes, each.text, lines))
        before = each.text
    return SpecView(ref, status, durability, text, found)


def _diff(before: str, after: str) -> list[str]:
    lines = difflib.unified_diff(before.splitlines()[:_LINES_MAX], after.splitlines()[:_LINES_MAX], lineterm="", n=2)
    return list(lines)[2:]


def render(found: SpecView, links: Links) -> Body:
    parts: list[Child] = [h("h1", "Spec")]
    if len(found.versions) > 1:
        rows = [_row(number, each) for number, each in enumerate(found.versions, 1)]
        parts += [h("h2", "Changes"), table(["version", "brought by", "at", "changes", "difference"], rows)]
        parts += [h("h2", "Spec in force")]
    if found.text:
        parts.append(
            h("p", "The journal is the original; spec.yaml in the folder of the run says the same.", class_="quiet")
        )
        parts.append(h("pre", found.text, class_="spec"))
    else:
        parts.append(h("p", "The run has not begun: it has no spec yet."))
    if len(found.versions) > 1:
        parts += [h("h2", "Earlier specs"), [_old(number, each) for number, each in enumerate(found.versions[:-1], 1)]]
    return Body(f"Spec {found.ref.run_id}", join(parts), found.ref, "spec", found.status, found.durability)


def _row(number: int, each: SpecStep) -> Markup:
    lines = [h("span", f"{line}\n", class_=_tone(line)) for line in each.diff]
    return h(
        "tr",
        h("td", str(number), class_="number"),
        h("td", each.began, h("div", f"holdfast {each.version}", class_="quiet")),
        h("td", h("time", each.at[:19].replace("T", " "), datetime=each.at)),
        h("td", h("ul", [change_item(change) for change in each.changes], class_="changes") if each.changes else ""),
        h("td", h("pre", lines, class_="unified") if lines else ""),
    )


def _tone(line: str) -> str:
    return "ins" if line.startswith("+") else "del" if line.startswith("-") else "same"


def _old(number: int, each: SpecStep) -> Markup:
    title = f"version {number}, {each.began} {each.at[:19].replace('T', ' ')}"
    return h("details", h("summary", title), h("pre", each.text, class_="spec"), id=f"version-{number}")
