"""Give what lies in the store a place in Django's admin: permissions, and a subject for its log.

No table belongs to these models, for the store may be a Redis: the pages read the store.
"""

from __future__ import annotations

from typing import Any

from django.db import models


class Elsewhere(models.Manager):
    """No rows: what is listed lies in the store."""

    def get_queryset(self) -> Any:
        """Return an empty set, which asks no database: ``dumpdata`` goes over every model."""
        return super().get_queryset().none()


class Subject(models.Model):
    """What all three have in common."""

    id = models.CharField(primary_key=True, max_length=255)

    objects = Elsewhere()

    class Meta:
        """No table, and nothing to add or change."""

        abstract = True
        managed = False
        base_manager_name = "objects"
        default_permissions: tuple[str, ...] = ("view",)

    def __str__(self) -> str:
        """Return its id, key or name."""
        return str(self.id)


class DeadLetter(Subject):
    """A call that will not run again by itself."""

    class Meta(Subject.Meta):
        """Its permissions."""

        permissions = (("can_replay", "Can replay dead letters"), ("can_discard", "Can discard dead letters"))


class Key(Subject):
    """An idempotency key, and the lease under which its job runs."""

    class Meta(Subject.Meta):
        """Its permissions."""

        permissions = (("can_release", "Can release leases"),)
        verbose_name_plural = "keys and leases"


class BeatEntry(Subject):
    """An entry of the schedule, as the beats see it."""

    class Meta(Subject.Meta):
        """Its name."""

        verbose_name_plural = "beat entries"
