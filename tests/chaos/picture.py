"""Draw the timeline of a run as SVG: what was broken when, how long what was cut off waited, and how much was done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from html import escape

from tests.chaos.evidence import Evidence
from tests.chaos.judge import recoveries

_WIDTH, _LEFT, _ROW, _BARS = 900, 150, 14, 80
_COLOUR = {"kill": "#c0392b", "freeze": "#2980b9", "restart": "#8e44ad", "roll": "#8e44ad"}
_OTHER, _WAITED, _DONE = "#e67e22", "#7f8c8d", "#27ae60"


def picture(evidence: Evidence) -> str:
    """Return the drawing; one line for each kind of fault, below it the throughput."""
    times = [row.at for row in evidence.rows]
    begin, end = min(times, default=0.0), max(times, default=1.0)
    scale = (_WIDTH - _LEFT) / max(end - begin, 1.0)
    kinds = sorted({fault.kind for fault in evidence.faults})
    below = _ROW * (len(kinds) + 1)
    height = below + _BARS + 30
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="10">'
    said = (
        "<title>What was broken when, when what was cut off ran again, and how many bodies ended in each second</title>"
    )
    shapes = [*_lanes(evidence, kinds, begin=begin, end=end, scale=scale)]
    waits = [*_waits(evidence, top=_ROW * len(kinds), begin=begin, end=end, scale=scale)]
    bars = [*_bars(evidence, top=below + 10, begin=begin, scale=scale)]
    paper = f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>'
    return "\n".join([head, said, paper, *shapes, *waits, *bars, "</svg>", ""])


def _lanes(evidence: Evidence, kinds: list[str], *, begin: float, end: float, scale: float) -> Iterator[str]:
    for lane, kind in enumerate(kinds):
        y = _ROW * lane + 4
        yield f'<text x="4" y="{y + 9}">{escape(kind)}</text>'
        for fault in evidence.faults:
            if fault.kind == kind:
                x = _LEFT + (fault.began - begin) * scale
                width = max((min(fault.healed, end) - fault.began) * scale, 2.0)
                colour = _COLOUR.get(kind.split()[0], _OTHER)
                said = escape(f"{fault.target} {fault.link}")
                yield f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_ROW - 4}" fill="{colour}"><title>{said}</title></rect>'


def _waits(evidence: Evidence, *, top: int, begin: float, end: float, scale: float) -> Iterator[str]:
    yield f'<text x="4" y="{top + 13}">until it ran again</text>'
    waits = {(one.killed, min(one.killed + one.seconds, end)) for one in recoveries(evidence)}
    places = {(round((since - begin) * scale), round(max((until - since) * scale, 2.0))) for since, until in waits}
    for x, width in sorted(places):
        yield f'<rect x="{_LEFT + x}" y="{top + 6}" width="{width}" height="5" fill="{_WAITED}" fill-opacity="0.6"/>'


def _bars(evidence: Evidence, *, top: int, begin: float, scale: float) -> Iterator[str]:
    wide = max(1, round(1 / scale))  # seconds: of a long run a bar for each pixel
    counts = Counter(int(row.at - begin) // wide for row in evidence.of("end"))
    most = max(counts.values(), default=1)
    yield f'<text x="4" y="{top + 12}">bodies ended</text>'
    yield f'<text x="4" y="{top + 24}">a second (most {most / wide:.0f})</text>'
    for place, count in sorted(counts.items()):
        tall = _BARS * count / most
        x, y = _LEFT + place * wide * scale, top + _BARS - tall
        width = max(wide * scale - 0.5, 0.5)
        yield f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{tall:.1f}" fill="{_DONE}"/>'
