"""Pieces of the HTML report: escaped text, tables, lists, and long texts that are folded.

Invariant: every function escapes the text that it is given, except `section` and `card`, whose bodies are markup that
the other functions made.
"""

import html
import re
from collections.abc import Iterable, Sequence

from holdfast.printable import clean
from holdfast.report.compare.sentences import SEE_TABLE

_NO_HTML = re.compile("[\ud800-\udfff\ufffe\uffff]")
_SHOWN_MAX = 600
_LINES_MAX = 12
_HEAD, _TAIL = 320, 120
"""Characters of a long text that are shown: its beginning, and its end, where answers often have their result."""
_NOTES_SHOWN = 3
_SUBJECTS_MAX = 6
_ASIDE = re.compile(r"\([^()]*\)")


def escaped(text: str) -> str:
    """Text as HTML, with control characters and everything that HTML cannot hold shown as escapes."""
    return html.escape(_NO_HTML.sub(lambda found: f"\\u{ord(found[0]):04x}", clean(text)))


def heading(level: int, text: str) -> str:
    return f"<h{level}>{escaped(text)}</h{level}>\n"


def table(names: Sequence[str], rows: Iterable[Sequence[str]], titles: int, foot: Sequence[str] = ()) -> str:
    """The first `titles` columns hold names, the last of them names the row; the others hold numbers. `foot`: a row of
    sums.
    """
    classes = ["name" if number < titles else "number" for number in range(len(names))]
    head = "".join(f'<th scope="col" class="{c}">{escaped(n)}</th>' for c, n in zip(classes, names, strict=True))
    # A row without its first name belongs to the row above.
    body = "".join(f"<tr{'' if row[0] else ' class=more'}>{_cells(row, classes, titles)}</tr>\n" for row in rows)
    sums = f"<tfoot><tr>{_cells(foot, classes, 0)}</tr></tfoot>\n" if foot else ""
    whole = f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}</tbody>\n{sums}</table>"
    return f'<div class="wide" tabindex="0">{whole}</div>\n'


def _cells(row: Sequence[str], classes: Sequence[str], titles: int) -> str:
    found = []
    for number, (text, kind) in enumerate(zip(row, classes, strict=True)):
        opening, closing = ('th scope="row"', "th") if number == titles - 1 else ("td", "td")
        found.append(f'<{opening} class="{kind}">{escaped(text)}</{closing}>')
    return "".join(found)


def sentences(lines: Iterable[str]) -> str:
    """Sentences about results, together if they have the same subject, which is all before the first colon. What is in
    brackets is muted. Many subjects are folded.
    """
    found: dict[str, list[str]] = {}
    for line in lines:
        subject, colon, rest = line.partition(": ")
        has_subject = bool(colon) and rest != SEE_TABLE
        found.setdefault(subject if has_subject else "", []).append(rest if has_subject else line)
    items = []
    for subject, several in found.items():
        title = f"<strong>{escaped(subject)}:</strong>" if subject else ""
        muted = (_ASIDE.sub(r'<span class="muted">\g<0></span>', escaped(each)) for each in several)
        items.append(f"<li>{title}{''.join(f'<p>{each}</p>' for each in muted)}</li>\n")
    shown = items if len(items) <= _SUBJECTS_MAX + 1 else items[:_SUBJECTS_MAX]
    text = f'<ul class="summary">\n{"".join(shown)}</ul>\n'
    if len(shown) < len(items):
        folded = f'<ul class="summary">\n{"".join(items[len(shown) :])}</ul>\n'
        text += (
            f'<details class="fold"><summary>More results ({len(items) - len(shown)})</summary>\n{folded}</details>\n'
        )
    return text


def notes(lines: Iterable[str], what: str = "More notes", shown: int = 1) -> str:
    """Small lines below a table. If there are many, all but the first `shown` are folded; `what` names them."""
    found = [f"<li>{escaped(line)}</li>\n" for line in lines]
    if not found:
        return ""
    first = found if len(found) <= max(_NOTES_SHOWN, shown + 1) else found[:shown]
    folded = found[len(first) :]
    text = f'<ul class="notes">\n{"".join(first)}</ul>\n'
    if folded:
        inner = f'<ul class="notes">\n{"".join(folded)}</ul>\n'
        text += f'<details class="fold"><summary>{escaped(what)} ({len(folded)})</summary>\n{inner}</details>\n'
    return text


def passage(text: str, characters: int = 0, tag: str = "div") -> str:
    """A text of any length with its line breaks. Of a long one the beginning and the end, and the whole is folded.
    `characters`: the length of the whole, if `text` is only a part of it.
    """
    characters = max(characters, len(text))
    if characters <= _SHOWN_MAX and text.count("\n") < _LINES_MAX:
        return _block(text, tag)
    head = "\n".join(text[:_HEAD].splitlines()[: _LINES_MAX // 2])
    tail = "\n".join(text[max(len(head), len(text) - _TAIL) :].splitlines()[-_LINES_MAX // 4 :])
    part = "all" if characters == len(text) else "more of"
    folded = f"<summary>Show {part} {characters:,} characters</summary>{_block(text, tag, 'scrolled', scrolls=True)}"
    shown = _block(f"{head.rstrip()}\n…\n{tail.lstrip()}", tag, "head")
    return f'<div class="passage">{shown}<details class="more">{folded}</details></div>'


def _block(text: str, tag: str, kind: str = "", *, scrolls: bool = False) -> str:
    # The first line break after <pre> is not shown, so one that belongs to the text needs another before it.
    lead = "\n" if tag == "pre" else ""
    focus = ' tabindex="0"' if scrolls else ""  # so that the keyboard can scroll it
    return f'<{tag} class="{f"text {kind}".rstrip()}" dir="auto"{focus}>{lead}{escaped(text)}</{tag}>'


def pairs(facts: Iterable[tuple[str, str]]) -> str:
    """Names with markup as values, as a description list."""
    return "".join(f"<dt>{escaped(name)}</dt><dd>{value}</dd>\n" for name, value in facts)
