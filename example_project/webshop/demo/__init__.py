"""The Django shop's story: ``python -m example_project.webshop.demo``.

``story.py`` is what happens, ``staff.py`` a person at the admin, ``verdict.py`` what the database proves.
"""
