"""The protocol as an explicit-state model: every interleaving of a small number of workers, messages and faults.

`protocol` is one key from submission to end, `beat` two beats and the slots of one entry, `children` the ids that a parent
derives. `scenarios` has the cases. Run them with ``python -m tests.model``; what the model assumes is written down in
``docs/explanation/model.md``.
"""
