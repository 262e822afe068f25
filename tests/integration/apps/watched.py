"""The app of `tests.integration.apps.worker`, watched by Sentry: ``CR_SENTRY_DSN`` says where."""

from __future__ import annotations

import os

import sentry_sdk
from sentry_sdk.integrations.celery import CeleryIntegration

from tests.integration.apps.worker import app

sentry_sdk.init(
    dsn=os.environ["CR_SENTRY_DSN"],
    integrations=[CeleryIntegration()],
    send_default_pii=os.environ.get("CR_SENTRY_PII") == "1",
    traces_sample_rate=1.0,
    release="shop@1",
)
app.conf.reliable_event_hooks = (
    app.stage.hook,
    "celery_reliable.contrib.sentry:report",
    "celery_reliable.contrib.sentry:check_in",
)
