"""Malformed messages, drawn at random, for a real worker: it lives, and every one is accounted for.

`messages` draws them, `run` sends them to a worker and counts what became of them. ``python -m tests.fuzz`` sends 100,000.
"""
