"""The Django app: put ``"celery_reliable.django"`` into ``INSTALLED_APPS``."""
