"""The frame of every page: head, navigation, the state of the run, keyboard help."""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from holdfast.report import status_text, status_tone
from holdfast.view.links import Links
from holdfast.view.markup import Child, Markup, h, join
from holdfast.view.page import Body
from holdfast.view.sources import Durability, RunRef

RUN_PARTS = (
    ("", "Overview"),
    ("samples", "Samples"),
    ("errors", "Errors"),
    ("compare", "Compare"),
    ("profile", "Profile"),
    ("lineage", "Lineage"),
    ("spec", "Spec"),
)
"""The pages of a run in its navigation."""
_OF_EVALUATION = ("", "samples", "errors", "compare")
"""Those that show the scores of one evaluation."""
_FILE_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "form-action 'none'",
        "base-uri 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Of a page in a static copy, which has no headers: that of `access`, without what only a server needs."""
_KEYS = (
    ("j / k", "next and previous line"),
    ("Enter", "open the line"),
    ("/", "search"),
    ("n / p", "next and previous page"),
    ("u", "up"),
    ("?", "this help"),
)


def render_page(body: Body, links: Links) -> str:
    """The whole document."""
    head = h(
        "head",
        h("meta", charset="utf-8"),
        h("meta", http_equiv="Content-Security-Policy", content=_FILE_POLICY) if links.is_static else None,
        h("meta", name="referrer", content="no-referrer") if links.is_static else None,
        h("meta", name="viewport", content="width=device-width, initial-scale=1"),
        h("meta", name="color-scheme", content="light dark"),
        # Without a referrer a browser sends forms with the Origin "null", which no write accepts.
        h("meta", name="referrer", content="same-origin") if links.editing is not None else None,
        h("title", f"{body.title} · Holdfast"),
        h("link", rel="icon", href="data:image/svg+xml,<svg xmlns='http://www.w3.org/2000/svg'/>"),
        h("link", rel="stylesheet", href=links.file("view.css")),
        [h("script", src=links.file(name), defer=True) for name in ("view.js", *body.scripts)],
    )
    events = ""
    if body.is_live and body.run is not None and not links.is_static:
        events = links.data(links.run(body.run, "events"))
    document = h(
        "html",
        head,
        h(
            "body",
            h("a", "Skip to content", href="#content", class_="skip"),
            _header(body, links),
            h("main", body.content, id="content", tabindex="-1"),
            _help(),
            data_events=events or None,
            data_static=links.is_static,
        ),
        lang="en",
    )
    return f"<!doctype html>\n{document}\n"


def _header(body: Body, links: Links) -> Markup:
    crumbs: list[Child] = [h("a", "Holdfast", href=links.runs(), class_="home")]
    if body.run is not None:
        name = f"{body.run.experiment} / {body.run.run_id}"
        crumbs += [h("a", name, href=_run_address(body, "", links), class_="crumb")]
    rows = [h("nav", crumbs, _state(body), class_="crumbs", aria_label="Breadcrumb")]
    if body.run is not None:
        shown = [(part, label) for part, label in RUN_PARTS if links.has(part)]
        tabs = [_tab(label, _run_address(body, part, links), part == body.part) for part, label in shown]
    else:
        tabs = [_tab("Runs", links.runs(), body.part == "runs")]
        others = [name for name in ("compare", "leaderboard", "history") if links.has(f"/{name}")]
        tabs += [_tab(name.capitalize(), links.page(name), body.part == name) for name in others]
    rows.append(h("nav", tabs, class_="tabs", aria_label="Pages"))
    if body.run is not None and body.run.at is not None:
        rows.append(_travel(body.run, body.part, links))
    return h("header", rows)


def _run_address(body: Body, part: str, links: Links) -> str:
    """Another page of the run, with the evaluation that this one shows. A static copy has only one."""
    assert body.run is not None
    keeps = part in _OF_EVALUATION and not links.is_static
    return links.run(body.run, part, evaluation=body.evaluation if keeps else "")


def _tab(label: str, address: str, is_current: bool) -> Markup:
    return h("a", label, href=address, aria_current="page" if is_current else None)


def _state(body: Body) -> Markup | None:
    if not body.status[0]:
        return None
    return h(
        "span",
        badge(*body.status),
        durability_line(body.durability) if isinstance(body.durability, Durability) else None,
        class_="state",
        id="state",
        data_live=True,
    )


def badge(status: str, reason: str = "", failed: int = 0, planned: int = 0) -> Markup:
    """A status in its colour, with its reason as a hint. `failed`, `planned`: samples of a run, because one that has
    completed may have failed ones.
    """
    text, tone = status_text(status, failed, planned), status_tone(status, failed, planned)
    return h("span", text, class_=f"badge {tone}", title=reason or None)


def durability_line(found: Durability) -> Markup:
    """How far the records are safe."""
    parts = [f"record {found.read:,}", f"synced {found.synced:,}"]
    if found.mirrored is not None:
        late = f" ({found.behind_seconds:.0f} s behind)" if found.behind_seconds else ""
        parts.append(f"mirrored {found.mirrored:,}{late}")
    hint = "The last record shown, the last one safe on disk, and the last one safe in the mirror."
    return h("span", " · ".join(parts), class_="durability", title=hint)


def _travel(ref: RunRef, part: str, links: Links) -> Markup:
    now = msgspec.structs.replace(ref, at=None)
    return h(
        "p",
        f"This is the run as it was after record {ref.at:,}. ",
        h("a", "Show it as it is now", href=links.run(now, part)),
        class_="travel",
    )


def _help() -> Markup:
    rows = [h("tr", h("th", h("kbd", key), scope="row"), h("td", text)) for key, text in _KEYS]
    return h(
        "dialog",
        h("h2", "Keyboard"),
        h("table", h("tbody", rows)),
        h("form", h("button", "Close"), method="dialog"),
        id="help",
        aria_label="Keyboard help",
    )


def table(
    columns: Sequence[str], rows: Iterable[Markup], *, numbers: Collection[str | int] = (), **attributes: str
) -> Markup:
    """A table that scrolls sideways on narrow screens. `numbers`: columns that are aligned to the right, by name, or by
    place if names come from users.
    """
    head = [
        h("th", name, scope="col", class_="number" if name in numbers or place in numbers else None)
        for place, name in enumerate(columns)
    ]
    return h("div", h("table", h("thead", h("tr", head)), h("tbody", rows), **attributes), class_="wide", tabindex="0")


def facts(pairs: Iterable[tuple[str, Child]]) -> Markup:
    """Names and values, side by side."""
    return h("dl", [join([h("dt", name), h("dd", value)]) for name, value in pairs], class_="facts")
