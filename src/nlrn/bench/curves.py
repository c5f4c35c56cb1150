"""Curves for the documents, as SVG written by hand: no plotting library is needed."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 560, 320
LEFT, RIGHT, TOP, BOTTOM = 62, 36, 34, 48  # margins around the axes
COLORS = ("#1f5fa8", "#c2410c", "#3f7d3a", "#7a3e9d", "#0f766e", "#a16207", "#be185d", "#475569")
Point = tuple[float, float]
Series = Mapping[str, Sequence[Point]]


def svg(
    title: str,
    series: Series,
    *,
    x_label: str,
    y_label: str = "PSNR in dB",
    x_ticks: Mapping[float, str] | None = None,
    spans: Sequence[tuple[float, float, float]] = (),
) -> str:
    """The curves of all series in one picture.

    Args:
        title: stands above.
        series: name -> points (x, y), in the order in which they are joined; names are shown if
            there are several.
        x_label: of the horizontal axis.
        y_label: of the vertical one.
        x_ticks: place -> text on the horizontal axis; round numbers otherwise.
        spans: (x, lowest y, highest y) of points that were measured several times.
    """
    points = [point for each in series.values() for point in each]
    if not points:
        raise ValueError(f"a curve needs points, {title!r} has none")
    ys = [y for _, y in points] + [y for _, *ends in spans for y in ends]
    y_ticks = ticks(min(ys), max(ys))
    if x_ticks is None:
        x_ticks = {
            x: f"{x:,g}" for x in ticks(min(x for x, _ in points), max(x for x, _ in points))
        }
    xs = [*x_ticks, *(x for x, _ in points)]
    across = _scale(min(xs), max(xs), LEFT + 12, WIDTH - RIGHT - 12)
    up = _scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    parts = _frame(title, (x_label, x_ticks, across), (y_label, y_ticks, up))
    for x, low, high in spans:
        parts.append(_line((across(x), up(low)), (across(x), up(high)), "#444", width=3))
    for number, (name, each) in enumerate(series.items()):
        parts += _curve([(across(x), up(y)) for x, y in each], COLORS[number % len(COLORS)])
        if len(series) > 1:
            parts += _legend(number, name)
    return _picture(parts)


def scatter(
    title: str,
    points: Mapping[str, Point],
    *,
    x_label: str,
    x_ticks: Sequence[float],
    y_label: str = "PSNR in dB",
    ours: Sequence[str] = (),
) -> str:
    """Points with their names, the horizontal axis logarithmic.

    Args:
        title: stands above.
        points: name -> (x, y).
        x_label: of the horizontal axis.
        x_ticks: numbers on it, which hold all points.
        y_label: of the vertical one.
        ours: names that are set off by color.
    """
    y_ticks = ticks(min(y for _, y in points.values()), max(y for _, y in points.values()))
    along = _scale(math.log(x_ticks[0]), math.log(x_ticks[-1]), LEFT + 12, WIDTH - RIGHT - 60)
    up = _scale(y_ticks[0], y_ticks[-1], HEIGHT - BOTTOM, TOP)
    shown = {math.log(x): f"{x:g}" for x in x_ticks}
    parts = _frame(title, (x_label, shown, along), (y_label, y_ticks, up))
    places = {name: (along(math.log(x)), up(y)) for name, (x, y) in points.items()}
    for name, (left, top) in places.items():
        color = COLORS[1] if name in ours else COLORS[0]
        parts.append(f'<circle cx="{left:.1f}" cy="{top:.1f}" r="4.5" fill="{color}"/>')
        # To the right, unless another point is in the way.
        is_taken = any(0 < a - left < 70 and abs(b - top) < 12 for a, b in places.values())
        side, anchor = (-8, "end") if is_taken else (8, "start")
        parts.append(_text(left + side, top + 4, name, anchor=anchor))
    return _picture(parts)


def _frame(
    title: str,
    horizontal: tuple[str, Mapping[float, str], Callable[[float], float]],
    vertical: tuple[str, Sequence[float], Callable[[float], float]],
) -> list[str]:
    """Title and axes: each has a label, its ticks, and where a value lies."""
    (x_label, x_ticks, across), (y_label, y_ticks, up) = horizontal, vertical
    digits = max(0, -math.floor(math.log10(y_ticks[1] - y_ticks[0]) + 1e-9))
    parts = [_text(WIDTH / 2, 20, title, size=15)]
    for y in y_ticks:
        parts.append(_line((LEFT, up(y)), (WIDTH - RIGHT, up(y)), "#dddddd"))
        parts.append(_text(LEFT - 6, up(y) + 4, f"{y:.{digits}f}", anchor="end"))
    for x, text in x_ticks.items():
        parts.append(_line((across(x), HEIGHT - BOTTOM), (across(x), HEIGHT - BOTTOM + 5), "#444"))
        parts.append(_text(across(x), HEIGHT - BOTTOM + 18, text))
    parts.append(_line((LEFT, HEIGHT - BOTTOM), (WIDTH - RIGHT, HEIGHT - BOTTOM), "#444"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, x_label))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    turned = f' transform="rotate(-90 16 {middle:g})"'
    parts.append(_text(16, middle, y_label, more=turned))
    return parts


def _picture(parts: Sequence[str]) -> str:
    box = f'width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}"'
    font = 'font-family="sans-serif" font-size="12"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {box} {font}>'
    back = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
    return "\n".join([head, back, *parts, "</svg>"]) + "\n"


def ticks(low: float, high: float, most: int = 7) -> list[float]:
    """Round numbers at equal steps that hold both ends, at least two and about as many as asked."""
    span = high - low or max(abs(high), 1.0) * 0.1
    size = 10.0 ** math.floor(math.log10(span))
    step = next(s for s in (size / 5, size / 2, size, 2 * size) if span / s <= most - 1)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(n * step, 10) for n in range(first, max(last, first + 1) + 1)]


def _scale(low: float, high: float, start: float, end: float) -> Callable[[float], float]:
    span = high - low or 1.0
    return lambda value: start + (value - low) / span * (end - start)


def _curve(points: Sequence[Point], color: str) -> list[str]:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    line = f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
    dots = [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{color}"/>' for x, y in points]
    return [line, *dots]


def _legend(number: int, name: str) -> list[str]:
    """The color and the name of a series, inside the lower right corner."""
    y = HEIGHT - BOTTOM - 14 - 18 * number
    swatch = _line((WIDTH - RIGHT - 30, y), (WIDTH - RIGHT - 8, y), COLORS[number % len(COLORS)], 3)
    return [swatch, _text(WIDTH - RIGHT - 38, y + 4, name, anchor="end")]


def _line(a: Point, b: Point, color: str, width: float = 1) -> str:
    ends = f'x1="{a[0]:.1f}" y1="{a[1]:.1f}" x2="{b[0]:.1f}" y2="{b[1]:.1f}"'
    return f'<line {ends} stroke="{color}" stroke-width="{width:g}"/>'


def _text(
    x: float, y: float, text: str, *, anchor: str = "middle", size: int = 12, more: str = ""
) -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}"'
    return f"<text {place}{more}>{escape(text)}</text>"
