"""The tasks of `jobs` as a worker of another release has them.

``CR_WITHOUT`` names tasks that it does not know, ``CR_VERSIONS`` the payload versions of others (``add=2,pair=3``).
"""

from __future__ import annotations

import os

from tests.integration.apps.jobs import make_app
from tests.integration.apps.stage import Stage

app = make_app(Stage.from_environment())
app.finalize()
for name in filter(None, os.environ.get("CR_WITHOUT", "").split(",")):
    app.tasks.unregister(name)
for entry in filter(None, os.environ.get("CR_VERSIONS", "").split(",")):
    name, _, version = entry.partition("=")
    type(app.tasks[name]).payload_version = int(version)
