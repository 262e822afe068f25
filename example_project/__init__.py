"""A small report service: what a project looks like that has adopted celery_reliable.

A shop sells things. Every few seconds a scheduler asks for the report of the day; rendering one is slow work. Orders are
charged at a payment service that says no, not now, or nothing at all, and every charged order gets an invoice.

Read in this order:

* ``settings.py``  what the environment decides
* ``app.py``       the Celery application: the adoption is one line, the rest is ordinary Celery
* ``tasks.py``     the four tasks
* ``reports.py``   what a report is made of; ``payments.py`` the fake payment service, with its own record of charges
* ``ledger.py``    an append-only record of what really happened, which knows nothing about celery_reliable
* ``verdict.py``   what that record proves
* ``demo/``        ``python -m example_project.demo``: real processes, real signals, one screen
"""
