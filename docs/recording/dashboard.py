"""Draw the dashboard with what a real Prometheus scraped of a real fleet: ``python -m docs.recording.dashboard``.

Each panel is where the dashboard's file puts it, and shows the answers to the panel's own queries. Grafana draws it nicer.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

import requests

from celery_reliable.testing.servers.prometheus import start_prometheus
from docs.recording.fleet import ROOT, custom, running, wait_until

DASHBOARD: Final = ROOT / "docs" / "how-to" / "files" / "grafana-dashboard.json"
RULES: Final = DASHBOARD.with_name("prometheus-rules.yaml")
PICTURE: Final = ROOT / "docs" / "_static" / "dashboard.svg"
_SECONDS: Final = 90
_COLUMN, _ROW, _GAP, _HEAD = 52, 30, 8, 26  # pixels
_COLOURS: Final = ("#73bf69", "#f2cc0c", "#5794f2", "#ff9830", "#f2495c", "#b877d9", "#8ab8ff", "#fade2a", "#37872d")
_ENTRIES: Final = 4  # of a legend

Series = tuple[str, list[tuple[float, float]]]


def main() -> None:
    """Let customers come to the shop for a while, then ask and draw."""
    with running() as fleet:
        targets = [f"127.0.0.1:{port}" for port in fleet.ports]
        with start_prometheus(targets, rules=RULES) as server:
            wait_until(lambda: _asked(server.url, "celery_reliable_up"))
            begin = time.time()
            with custom(fleet, orders=1, a_second=12):
                time.sleep(_SECONDS * 0.45)
            with custom(fleet, orders=10_000, a_second=80):
                time.sleep(_SECONDS * 0.2)
            with custom(fleet, orders=30_000, a_second=12):
                time.sleep(_SECONDS * 0.35)
            panels = [Panel.of(one, url=server.url, begin=begin) for one in json.loads(DASHBOARD.read_text())["panels"]]
    PICTURE.write_text(drawn(panels))


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel, with the answers to its queries."""

    title: str
    kind: str
    unit: str
    place: Mapping[str, int]
    series: Sequence[Series]

    @classmethod
    def of(cls, panel: Mapping[str, Any], *, url: str, begin: float) -> Panel:
        """Ask what the panel asks."""
        found: list[Series] = []
        for target in panel.get("targets", ()):
            legend = target.get("legendFormat") or ""
            query = target["expr"].replace("$__rate_interval", "10s").replace("$job", ".*")
            found += [(_named(legend, one["metric"]), _points(one)) for one in _over_time(url, query, begin=begin)]
        unit = panel["fieldConfig"]["defaults"].get("unit", "short")
        return cls(panel["title"], panel["type"], unit, panel["gridPos"], [one for one in found if one[1]])


def _over_time(url: str, query: str, *, begin: float) -> list[Any]:
    asked = {"query": query, "start": str(begin), "end": str(time.time()), "step": "1"}
    answer = requests.get(f"{url}/api/v1/query_range", params=asked, timeout=20).json()
    return list(answer["data"]["result"])


def _asked(url: str, query: str) -> list[Any]:
    answer = requests.get(f"{url}/api/v1/query", params={"query": query}, timeout=10).json()
    return list(answer["data"]["result"])


def _points(found: Mapping[str, Any]) -> list[tuple[float, float]]:
    values = ((float(at), float(value)) for at, value in found["values"])
    return [(at, value) for at, value in values if math.isfinite(value)]


def _named(legend: str, metric: Mapping[str, str]) -> str:
    for label, value in metric.items():
        legend = legend.replace("{{" + label + "}}", value)
    return legend


# --- drawing


def drawn(panels: Iterable[Panel]) -> str:
    """Return the picture."""
    panels = list(panels)
    width = 24 * _COLUMN + _GAP
    height = max((one.place["y"] + one.place["h"]) for one in panels) * _ROW + _GAP
    parts = [_of_panel(one) for one in panels]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif">',
        "<title>The dashboard of a shop in its rush hour</title>",
        f"<desc>{len(panels)} panels with what Prometheus scraped of three workers, two beats and the exporter</desc>",
        f'<rect width="{width}" height="{height}" fill="#111217"/>',
        *parts,
        "</svg>\n",
    ])  # fmt: skip


def _of_panel(panel: Panel) -> str:
    place = panel.place
    width, height = place["w"] * _COLUMN - _GAP, place["h"] * _ROW - _GAP
    body = _stat(panel, width, height) if panel.kind == "stat" else _graph(panel, width, height)
    return (
        f'<g transform="translate({place["x"] * _COLUMN + _GAP},{place["y"] * _ROW + _GAP})">'
        f'<rect width="{width}" height="{height}" rx="3" fill="#181b1f" stroke="#2a2e35"/>'
        f'<text x="10" y="18" font-size="13" font-weight="600" fill="#ccccdc">{escape(panel.title)}</text>{body}</g>'
    )


def _stat(panel: Panel, width: int, height: int) -> str:
    last = [(name, points[-1][1]) for name, points in panel.series] or [("", 0.0)]
    step = width / len(last)
    return "".join(
        f'<text x="{step * (number + 0.5):.0f}" y="{height / 2 + 20:.0f}" font-size="32" text-anchor="middle" fill="#73bf69">'
        f"{escape(shown(value, panel.unit))}</text>"
        f'<text x="{step * (number + 0.5):.0f}" y="{height - 10}" font-size="12" text-anchor="middle" fill="#9aa0a8">'
        f"{escape(name)}</text>"
        for number, (name, value) in enumerate(last)
    )


def _graph(panel: Panel, width: int, height: int) -> str:
    if not panel.series:
        return (
            f'<text x="{width / 2}" y="{height / 2}" font-size="13" text-anchor="middle" fill="#6b7078">No data</text>'
        )
    left, right, top, bottom = 54, width - 10, _HEAD + 8, height - 42
    times = [at for _, points in panel.series for at, _ in points]
    begin, end = min(times), max(times)
    scale = _nice(max(value for _, points in panel.series for _, value in points) or 1.0)

    def x(at: float) -> float:
        return left + (at - begin) / max(end - begin, 1) * (right - left)

    def y(value: float) -> float:
        return bottom - value / scale * (bottom - top)

    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        level = y(scale * share)
        parts.append(f'<line x1="{left}" x2="{right}" y1="{level:.1f}" y2="{level:.1f}" stroke="#24282e"/>')
        label = escape(shown(scale * share, panel.unit))
        parts.append(f'<text x="{left - 6}" y="{level + 4:.1f}" {_SMALL} text-anchor="end">{label}</text>')
    parts += [
        f'<text x="{x(begin + moment):.1f}" y="{bottom + 15}" {_SMALL} text-anchor="middle">{moment} s</text>'
        for moment in range(0, int(end - begin) + 1, 15)
    ]
    for (_, points), colour in zip(panel.series, _COLOURS * 9, strict=False):
        line = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
    return "".join([*parts, _legend(panel, left, height)])


def _legend(panel: Panel, left: int, height: int) -> str:
    parts, at = [], float(left)
    for (name, _), colour in zip(panel.series[:_ENTRIES], _COLOURS, strict=False):
        parts.append(f'<rect x="{at:.0f}" y="{height - 17}" width="12" height="3" fill="{colour}"/>')
        parts.append(f'<text x="{at + 17:.0f}" y="{height - 11}" {_SMALL}>{escape(name or panel.title)}</text>')
        at += 34 + 6.2 * len(name or panel.title)
    more = len(panel.series) - _ENTRIES
    if more > 0:
        parts.append(f'<text x="{at:.0f}" y="{height - 11}" {_SMALL}>and {more} more</text>')
    return "".join(parts)


_SMALL: Final = 'font-size="11" fill="#9aa0a8"'


def _nice(most: float) -> float:
    """Return where an axis ends well."""
    power = 10.0 ** math.floor(math.log10(most))
    return next(step * power for step in (1, 2, 4, 5, 10) if step * power >= most)


def shown(value: float, unit: str) -> str:
    """Write a value as people read it."""
    if unit == "percentunit":
        return f"{value:.0%}"
    if unit == "s":
        return f"{value * 1000:.3g} ms" if 0 < value < 1 else f"{value:.3g} s"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"  # noqa: PLR2004


if __name__ == "__main__":
    main()
