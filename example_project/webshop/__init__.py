"""The shop as a Django project: orders, invoices, reports, and the admin's pages over its tasks.

Read in this order:

* ``settings.py``  the project's settings; Celery's and ours stand among them
* ``celery.py``    the Celery application: nothing but the namespace
* ``models.py``    what the shop keeps
* ``tasks.py``     an order is charged in an inbox: its invoice and the marker that it exists are one commit
* ``admin.py``     the shop's own pages; those for dead letters, keys and beat come with the app
* ``demo/``        ``make demo-django``: worker, beat and site on SQLite, a killed worker, a replay from the admin

``python -m example_project.webshop`` is its ``manage.py``.
"""

from __future__ import annotations

from example_project.webshop.celery import app as celery_app

__all__ = ["celery_app"]
