"""Draw how much of each bar the costs in ``benchmarks/RESULTS.md`` take: ``python docs/draw_costs.py``, as `make docs` does."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Final

PICTURE: Final = Path(__file__).resolve().parent / "_static" / "costs-light.svg"
RESULTS: Final = Path(__file__).resolve().parents[1] / "benchmarks" / "RESULTS.md"

_ROW = re.compile(r"^\| (.+?) \| ([-\d.e+]+) ?(.*?) \| at (most|least) ([\d.]+) \|", re.MULTILINE)
_LEFT, _WIDTH, _TOP, _EACH = 450, 400, 50, 24
_HEAD = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1000 {height}" role="img" aria-labelledby="title description">
  <title id="title">What celery_reliable costs, as a share of its bars</title>
  <desc id="description">{description}</desc>
  <style>
    text {{ font-family: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; font-size: 15px; fill: #1e293b }}
    .note {{ font-size: 14px; fill: #64748b }}
    .end {{ text-anchor: end }} .middle {{ text-anchor: middle }}
    .kept {{ fill: #059669 }} .missed {{ fill: #dc2626 }}
    path {{ stroke: #64748b; stroke-dasharray: 4 4 }}
  </style>
"""


@dataclass(frozen=True, slots=True)
class Figure:
    """What was measured, and its bar; ``share`` is 1 where the bar is just met, less where it is kept with ease."""

    name: str
    said: str
    share: float


def figures(results: str) -> list[Figure]:
    """Return the figures that have a bar; of those that differ in a filter alone, the one nearest to its bar."""
    found: dict[str, Figure] = {}
    for name, value, unit, side, bar in _ROW.findall(results):
        share = _share(float(value), float(bar), most=side == "most")
        about = name.partition(", by ")[0]
        if about not in found or found[about].share < share:
            found[about] = Figure(about, f"{value} {unit}".strip() + f" (at {side} {bar})", share)
    return list(found.values())


def _share(value: float, bar: float, *, most: bool) -> float:
    part, whole = (value, bar) if most else (bar, value)
    if part <= 0:
        return 0.0
    return part / whole if whole else inf


def drawn(results: str) -> str:
    """Return the picture."""
    shown = figures(results)
    kept = sum(one.share <= 1 for one in shown)
    parts = [_HEAD.format(height=_TOP + _EACH * len(shown) + 30, description=f"{kept} of {len(shown)} bars are kept.")]
    parts += [line for place, one in enumerate(shown) for line in _bar(one, _TOP + _EACH * place)]
    parts.append(f'  <path d="M{_LEFT + _WIDTH / 2:.0f} {_TOP - 12}v{_EACH * len(shown) + 10}"/>\n')
    parts.append(f'  <text class="note middle" x="{_LEFT + _WIDTH / 2:.0f}" y="{_TOP - 22}">the bar</text>\n')
    return "".join([*parts, "</svg>\n"])


def _bar(one: Figure, y: int) -> Iterator[str]:
    """Draw one; what is more than twice its bar ends there."""
    width = min(one.share, 2.0) * _WIDTH / 2
    right = max(width + 8, _WIDTH / 2 + 8) if one.share <= 1 else width + 8
    yield f'  <text class="end" x="{_LEFT - 12}" y="{y + 13}">{one.name.replace("&", "&amp;").replace("<", "&lt;")}</text>\n'
    yield f'  <rect class="{"kept" if one.share <= 1 else "missed"}" x="{_LEFT}" y="{y}" width="{max(width, 1.0):.1f}" height="16" rx="3"/>\n'
    yield f'  <text class="note" x="{_LEFT + right:.0f}" y="{y + 13}">{one.said}</text>\n'


if __name__ == "__main__":
    PICTURE.write_text(drawn(RESULTS.read_text("utf-8")), "utf-8")
