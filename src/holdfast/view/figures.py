"""Figures as SVG elements that take their colours from the page. Drawn by the server, so they need no script."""

from collections.abc import Sequence

from holdfast.report.text import format_number, shortened
from holdfast.stats import Summary
from holdfast.view.markup import Markup, h

_ROW, _LEFT, _WIDTH, _RIGHT = 24, 260, 720, 70
_ROWS_MAX = 40


def interval_figure(points: Sequence[tuple[str, Summary]]) -> Markup | None:
    """Means with their intervals, one line each."""
    shown = [(label, each) for label, each in points if each.mean is not None][:_ROWS_MAX]
    if not shown:
        return None
    ends = [value for _, each in shown for value in (each.low, each.high, each.mean) if value is not None]
    low, high = min(ends), max(ends)
    if low >= 0.0 and high <= 1.0:
        low, high = 0.0, 1.0
    room = _WIDTH - _LEFT - _RIGHT

    def x(value: float) -> float:
        return round(_LEFT + (value - low) / ((high - low) or 1.0) * room, 1)

    height = _ROW * len(shown) + 24
    parts = [
        h("line", x1=str(x(at)), x2=str(x(at)), y1="4", y2=str(height - 20), class_="grid")
        for at in (low, (low + high) / 2, high)
    ]
    parts += [
        h("text", format_number(at), x=str(x(at)), y=str(height - 4), text_anchor="middle", class_="axis")
        for at in (low, (low + high) / 2, high)
    ]
    for number, (label, each) in enumerate(shown):
        y = _ROW * number + 16
        parts.append(
            h("text", h("title", label), shortened(label, 36), x=str(_LEFT - 10), y=str(y + 4), text_anchor="end")
        )
        if each.low is not None and each.high is not None:
            parts.append(h("line", x1=str(x(each.low)), x2=str(x(each.high)), y1=str(y), y2=str(y), class_="range"))
        assert each.mean is not None
        parts.append(h("circle", cx=str(x(each.mean)), cy=str(y), r="4", class_="point"))
        parts.append(h("text", format_number(each.mean), x=str(_WIDTH - _RIGHT + 12), y=str(y + 4)))
    return h(
        "svg", parts, viewBox=f"0 0 {_WIDTH} {height}", role="img", aria_label="Means with intervals", class_="figure"
    )
