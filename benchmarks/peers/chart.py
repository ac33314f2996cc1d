"""The comparison as an SVG of three bar panels: throughput, latency of one client, processor time.

Text and rectangles alone; colours that a light and a dark page can both show.
"""

from typing import Any
from xml.sax.saxutils import escape

WIDTH, LABEL_WIDTH, VALUE_WIDTH = 760, 150, 90
BAR_HEIGHT, BAR_GAP, PANEL_HEAD = 18, 6, 40
OWN, OTHER, TEXT = "#c2571a", "#7d8ca3", "#808080"
PANELS = (
    ("requests per second, 64 clients (more is better)", "tiny closed 64", "per_s", "{:,.0f}"),
    ("p99 ms, 64 clients (less is better)", "tiny closed 64", "p99_ms", "{:.2f}"),
    ("p50 ms, one client (less is better)", "tiny closed 1", "p50_ms", "{:.2f}"),
    ("p99 ms, open loop 1,000/s (less is better)", "tiny open 1000", "p99_ms", "{:.2f}"),
    ("CPU seconds per 1,000 requests (less is better)", "tiny closed 64", "cpu_s_per_1000",
     "{:.3f}"),
)  # fmt: skip


def svg(result: dict[str, Any]) -> str:
    """The whole drawing."""
    parts: list[str] = []
    top = 0
    for title, load, key, form in PANELS:
        rows = [
            (peer["title"], float(value), peer["name"] == "mortise")
            for peer in result["peers"]
            if (value := peer["loads"].get(load, {}).get(key)) is not None
        ]
        rows.sort(key=lambda row: row[1], reverse=key == "per_s")
        parts += _panel(title, rows, form, top)
        top += PANEL_HEAD + len(rows) * (BAR_HEIGHT + BAR_GAP)
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top + BAR_GAP}"'
        f' width="{WIDTH}" font-family="system-ui, sans-serif" font-size="13" fill="{TEXT}">'
    )
    named = "<title>Mortise and other model servers: one small model on one machine</title>"
    return "\n".join((head, named, *parts, "</svg>", ""))


def _panel(title: str, rows: list[tuple[str, float, bool]], form: str, top: int) -> list[str]:
    parts = [f'<text x="0" y="{top + 24}" font-weight="600">{escape(title)}</text>']
    most = max((value for _, value, _ in rows), default=1.0) or 1.0
    room = WIDTH - LABEL_WIDTH - VALUE_WIDTH
    for place, (name, value, is_own) in enumerate(rows):
        y = top + PANEL_HEAD + place * (BAR_HEIGHT + BAR_GAP)
        width = max(1.0, room * value / most)
        base = y + BAR_HEIGHT - 5
        parts += [
            f'<text x="{LABEL_WIDTH - 8}" y="{base}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{LABEL_WIDTH}" y="{y}" width="{width:.1f}" height="{BAR_HEIGHT}"'
            f' fill="{OWN if is_own else OTHER}"/>',
            f'<text x="{LABEL_WIDTH + width + 6:.1f}" y="{base}">{form.format(value)}</text>',
        ]
    return parts
