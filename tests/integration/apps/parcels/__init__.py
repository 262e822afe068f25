"""A Django app, and the same tables for SQLAlchemy."""
