"""Say when an entry of a schedule is due, which due times still run, and what has become of each. Knows nothing of Celery."""
