"""Crash-safe Celery on the transport of celery-redis-plus with its defaults."""

from __future__ import annotations

import os

import celery_redis_plus  # registers its transport for valkey://

from benchmarks.peers.apps.safe import app, send
from benchmarks.peers.body import SERVER

app.conf.broker_url = os.environ[SERVER].replace("redis://", "valkey://")

__all__ = ["app", "celery_redis_plus", "send"]
