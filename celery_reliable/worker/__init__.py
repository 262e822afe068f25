"""The bootsteps that celery_reliable adds to a worker, one module each."""
