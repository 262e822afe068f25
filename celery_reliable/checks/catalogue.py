"""Name every finding once: one table behind the checks, the reference page and its anchors. Add to it, never rename."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

MEANINGS: Final[Mapping[str, str]] = {
    # how the project is configured
    "not_wired": "The app does not use celery_reliable: neither the preset nor a task asks for it.",
    "settings_wrong": "A setting of celery_reliable is wrong, so no worker starts.",
    "early_ack": "A message is acknowledged before its task has run: a killed worker loses it.",
    "lost_child_acked": "A task whose process was killed is acknowledged as failed, instead of running again.",
    "runs_cancelled": "A lost connection to the broker kills the tasks that run.",
    "pickle_accepted": "Whoever can write to the broker can run code in the workers.",
    "retries_unbounded": "A task retries for ever: one bad call keeps a worker busy until somebody looks.",
    "visibility_short": "Redis gives a task that still runs to a second worker.",
    "prefetch_hoards": "A worker keeps messages in hand that others could run now.",
    "eager": "Tasks run inside the caller: no worker, no retry, no dead letter.",
    "quorum_drops": "A quorum queue deletes a message at its delivery limit, and tells nobody.",
    "publish_unconfirmed": "A message that RabbitMQ did not take counts as sent.",
    "fairness_without_lanes": "A task says whose its jobs are, and no queue is shared fairly.",
    "broker_open": "Whoever reaches the broker may send tasks: nobody asks who it is.",
    "monitors_doubled": "Two tell Sentry of the same slots of the schedule, and one of them takes a retry for the end.",
    "signing_key_short": "A key that signs messages can be found by trying.",
    "signing_not_enforced": "Messages that nobody has signed are run.",
    "no_app": "Django has loaded no Celery app, so nothing could be checked.",
    "no_key_talks_outside": "A task that calls another system has no declared key: two submissions are two effects.",
    # options of tasks, routes and entries
    "time_limit_off": "A task's time limit of 0 switches the project's limit off.",
    "no_time_limit": "A task that hangs holds its slot until somebody looks.",
    "soft_limit_late": "A task is killed before its soft time limit tells it to save its work.",
    "retries_anything": "A bug is tried again as if it were an outage.",
    "retries_in_step": "What failed together is tried together again.",
    "route_unmet": "A route is for a task that this app does not have.",
    "queue_undeclared": "A task, route or entry names a queue that is not among those that the project declares.",
    "entry_without_task": "An entry of the schedule names a task that nobody has.",
    # clocks
    "crontab_in_local_night": "An entry runs twice or not at all on the days on which clocks change.",
    "rows_unread": "Nothing could be said of the rows of django-celery-beat.",
    "zone_differs": "This process and the app count time in different zones.",
    # supervisors
    "grace_too_short": "The supervisor kills a worker before it has left.",
    "stop_signal_wrong": "The supervisor's signal is no order to drain.",
    "stop_signal_lost": "The supervisor's signal does not reach the worker.",
    "no_worker_found": "A file that was to be checked names no worker.",
    # what is kept, and how large it may be
    "results_kept_for_ever": "Results are never removed: the backend grows with every task.",
    "results_kept_too_long": "Results are kept for more than a year.",
    "letters_kept_too_long": "Dead letters are kept for so long that nobody will replay the oldest.",
    "letters_too_many": "More dead letters are kept than anybody can look through.",
    "parked_too_long": "Messages that nobody can run are parked for months before anybody is told.",
    "keys_kept_too_long": "Finished keys are kept for so long that the store grows without an end.",
    "sqs_message_limit": "SQS refuses messages above its limit, and nothing keeps large arguments aside.",
    "claim_check_above_broker_limit": "Arguments that the broker refuses stay in the message.",
    # servers and fleet, looked at with --live
    "store_down": "The store does not answer.",
    "broker_down": "The broker does not answer.",
    "store_evicts": "Redis may throw away what it was told to keep.",
    "store_volatile": "A crash of Redis forgets what it was told.",
    "store_old": "The store's server is too old.",
    "store_finding": "The store's server is configured against a promise.",
    "overlap_lock_pooled": "A pooler stands before PostgreSQL, so the lock of a dead process would not be free at once.",
    "store_is_cache": "The store is the database of a cache, which somebody will clear.",
    "store_no_tables": "The tables of the SQL store are not there yet.",
    "store_nearly_full": "Redis is near its memory limit, from where on nothing can be submitted.",
    "store_many_keys": "More finished keys are kept than most servers have memory for.",
    "consumer_timeout_short": "RabbitMQ takes a message away from a task that still runs.",
    "clock_skew": "The clock of a host differs from the store's.",
    "mixed_versions": "The workers of the fleet run different versions.",
    "two_fleets": "Workers of different brokers keep their records under one prefix, and publish each other's tasks.",
    "no_probe": "Nothing outside can tell whether a worker works or hangs.",
    "worker_stuck": "A worker is alive and receives nothing, or gives no sign of life.",
    "queue_unconsumed": "Messages wait in a queue that no worker consumes.",
    "slow_beside_fast": "A task that takes seconds waits behind one that takes minutes, in the same queue.",
    "no_leader": "Beats run and none leads, so nothing fires.",
}


def link(code: str) -> str:
    """Return where the documentation says more about a finding."""
    return f"reference/findings/{code}.html"
