"""The story of the shop, told with real processes, real signals and a real server: ``python -m example_project.demo``.

``story.py`` is what happens, ``fleet.py`` the processes, ``picture.py`` what there is to see, ``screen.py`` how it looks.
"""
