"""Break workers, servers and the network while work goes on, and judge by an independent ledger what was promised.

`plan` says what is submitted, `faults` what is broken, both from a seed; `fleet`, `network`, `groups` and `clocks` are
what there is to break, `breaking` breaks it. `ledger` and `accounts` record what happened; `collect` asks the store what
became of each job, `evidence` puts it in order, `judge` finds broken promises, `report` and `picture` show the run. `run`
is one cell from beginning to end.

Beats are members of the fleet like workers: their slots are jobs that only the ledger knows. `beats` is a longer run of
beats alone, with every policy for missed slots.
"""
