"""Run the same accidents on other task queues, each in an environment of its own, and write the table of the documentation.

``python -m benchmarks.peers`` makes what it needs below ``.peers`` and asks pip for nothing that the project requires.
`contenders` names libraries, settings and commands, `scenarios` what is done to them, `stage` runs their processes,
`body` is what every job does, `apps` how each library is told to do it, `report` writes the table.
"""
