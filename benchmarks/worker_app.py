"""The application that a benchmark's worker loads; the environment says which case."""

from __future__ import annotations

import os

from benchmarks.cases import CASES, make_app

app = make_app(
    CASES[os.environ["BENCHMARK_CASE"]],
    broker=os.environ["BENCHMARK_BROKER"],
    store=os.environ["BENCHMARK_STORE"],
    journal=os.environ["BENCHMARK_JOURNAL"],
)
