"""Write each verb of the store once, for every back end that can do several reads and writes as one step."""

from celery_reliable.stores.verbs.claiming import Claiming
from celery_reliable.stores.verbs.letters import KeepingLetters
from celery_reliable.stores.verbs.recovering import Recovering
from celery_reliable.stores.verbs.settling import Settling
from celery_reliable.stores.verbs.submitting import Submitting
from celery_reliable.stores.verbs.tables import Letter, Tables

__all__ = ["Letter", "SharedVerbs", "Tables"]


class SharedVerbs(Submitting, Claiming, Settling, KeepingLetters, Recovering):
    """All verbs of a record, a letter and the fleet."""
