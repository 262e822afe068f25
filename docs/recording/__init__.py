"""Record what the documentation shows of a running fleet: its screens, and its dashboard.

``python -m docs.recording.screens`` and ``python -m docs.recording.dashboard``, from the root of the project. Both start a
Redis, workers and a beat of their own.
"""
