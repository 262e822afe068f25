"""Test Celery tasks against real servers, real workers and real faults."""
