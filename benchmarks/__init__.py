"""Measure what celery_reliable costs, beside plain Celery with the same settings: ``python -m benchmarks``."""
