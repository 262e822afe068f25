"""Break workers, servers and the network while work goes on, and judge by an independent ledger what was promised.

`plan` says what is submitted, `faults` what is broken, both from a seed; `fleet` and `network` are what there is to
break, `breaking` breaks it. `ledger` and `accounts` record what happened; `collect` asks the store what became of each
job, `evidence` puts it in order, `judge` finds broken promises, `report` and `picture` show the run. `run` is one cell
from beginning to end.

Beat has no place in it yet: it would be one more kind of `fleet.Member`, its slots one more judge.
"""
