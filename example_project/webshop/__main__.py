"""Run a command of the Django project: ``python -m example_project.webshop migrate``."""

from __future__ import annotations

import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    execute_from_command_line(["manage.py", *sys.argv[1:]])
