"""Bind celery_reliable to tools that a project may have. Each module is imported only where a setting names it."""
