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


class DeadLetter(models.Model):
    """A call that will not run again by itself."""

    id = models.CharField(primary_key=True, max_length=255)

    objects = Elsewhere()

    class Meta:
        """Its permissions."""

        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions = (("can_replay", "Can replay dead letters"), ("can_discard", "Can discard dead letters"))

    def __str__(self) -> str:
        """Return its id."""
        return str(self.id)


class Key(models.Model):
    """An idempotency key, and the lease under which its job runs."""

    id = models.CharField(primary_key=True, max_length=255)

    objects = Elsewhere()

    class Meta:
        """Its permissions."""

        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)
        permissions = (("can_release", "Can release leases"),)
        verbose_name_plural = "keys and leases"

    def __str__(self) -> str:
        """Return the key."""
        return str(self.id)


class BeatEntry(models.Model):
    """An entry of the schedule, as the beats see it."""

    id = models.CharField(primary_key=True, max_length=255)

    objects = Elsewhere()

    class Meta:
        """Its permissions."""

        managed = False
        base_manager_name = "objects"
        default_permissions = ("view",)
        verbose_name_plural = "beat entries"

    def __str__(self) -> str:
        """Return its name."""
        return str(self.id)
