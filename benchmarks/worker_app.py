"""The application that a benchmark's worker loads; the environment says which case."""

from __future__ import annotations

import os

from benchmarks.cases import Case, make_app

app = make_app(
    Case.from_text(os.environ["BENCHMARK_CASE"]),
    broker=os.environ["BENCHMARK_BROKER"],
    store=os.environ["BENCHMARK_STORE"],
    journal=os.environ["BENCHMARK_JOURNAL"],
)
