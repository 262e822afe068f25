"""The app of a worker that comes to a moment between its pop of a message and kombu's note that it has it.

``celery -A tests.integration.apps.popping worker``. Kombu 5.7 has the pair in `QoS.append`; the moment is ``popped``.
"""

from __future__ import annotations

from typing import Any

from kombu.transport.redis import QoS

from tests.integration.apps.jobs import make_app
from tests.integration.apps.stage import Stage

stage = Stage.from_environment()
noting = QoS.append


def append(self: Any, message: Any, delivery_tag: str) -> None:
    """Come to the moment, then do as kombu does."""
    stage.meet("popped", str(message.headers.get("id")))
    noting(self, message, delivery_tag)


QoS.append = append
app = make_app(stage)
