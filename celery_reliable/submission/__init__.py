"""Submit a call: say which job it is, have the store accept it, publish it, or take it back."""

from celery_reliable.submission.aside import blob_ttl
from celery_reliable.submission.calls import Call
from celery_reliable.submission.identifying import carried, identify
from celery_reliable.submission.submitting import submit

__all__ = ["Call", "blob_ttl", "carried", "identify", "submit"]
