"""Make the permissions of the admin's pages; no table belongs to these models."""

from __future__ import annotations

from typing import Any

from django.db import migrations, models


def _subject(name: str, **options: Any) -> Any:
    fields = [("id", models.CharField(primary_key=True, max_length=255, serialize=False))]
    common = {"managed": False, "base_manager_name": "objects", "default_permissions": ("view",)}
    return migrations.CreateModel(name, fields, options={**common, **options})


class Migration(migrations.Migration):
    """See above."""

    dependencies = (("celery_reliable", "0002_inbox"),)
    operations = (
        _subject(
            "DeadLetter",
            permissions=(("can_replay", "Can replay dead letters"), ("can_discard", "Can discard dead letters")),
        ),
        _subject("Key", permissions=(("can_release", "Can release leases"),), verbose_name_plural="keys and leases"),
        _subject("BeatEntry", verbose_name_plural="beat entries"),
    )
