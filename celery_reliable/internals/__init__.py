"""Touch what Celery, kombu and billiard do not document, in one place, each with the version and the reason.

One module a theme; callers take every name from here. `tests/unit/internals/` and the integration tests fail when
one of them changes. Written against Celery 5.7.0 and kombu 5.7.0.
"""

from celery_reliable.internals.apps import (
    changed_settings,
    command_context,
    consume_also,
    declare_like,
    hide_settings,
    loaded_app,
    register_alias,
)
from celery_reliable.internals.consuming import (
    cancel_without_answer,
    forget_waiting,
    has_room,
    raised_prefetch,
    set_prefetch_by_the_loop,
)
from celery_reliable.internals.giving_back import (
    give_back,
    give_back_all,
    give_back_left_over,
    held_tags,
    keep_late_arrivals_near,
    restore_all,
)
from celery_reliable.internals.green_pools import poll_open_sockets_only, subscribe_only_to_wait
from celery_reliable.internals.messages import (
    context_of,
    is_moment,
    is_redelivered,
    place_of,
    queue_of,
    queues_by_tag,
    raw_parts,
)
from celery_reliable.internals.outages import away
from celery_reliable.internals.outcomes import (
    fail,
    fail_what_follows,
    is_called_in_place,
    is_chord_claimed,
    keeps_result,
    mark_skipped,
    prepared_retry,
    store_failure,
    store_retry,
    store_success,
)
from celery_reliable.internals.publishing import (
    LentProducer,
    confirming_producer,
    dumped_arguments,
    publishing,
    put_back,
    sending_options,
    target_queue,
)
from celery_reliable.internals.redis_channels import (
    hold_sweep,
    is_connected,
    mark_deliveries,
    outlive_connection,
    restore_only_at_the_end,
    return_late_replies,
    reuse_client,
    take_turns,
)
from celery_reliable.internals.running import active_requests, current, is_taken, is_terminated, pool_name, running_tags
from celery_reliable.internals.signing import Sign, sign_messages

__all__ = [
    "LentProducer",
    "Sign",
    "active_requests",
    "away",
    "cancel_without_answer",
    "changed_settings",
    "command_context",
    "confirming_producer",
    "consume_also",
    "context_of",
    "current",
    "declare_like",
    "dumped_arguments",
    "fail",
    "fail_what_follows",
    "forget_waiting",
    "give_back",
    "give_back_all",
    "give_back_left_over",
    "has_room",
    "held_tags",
    "hide_settings",
    "hold_sweep",
    "is_called_in_place",
    "is_chord_claimed",
    "is_connected",
    "is_moment",
    "is_redelivered",
    "is_taken",
    "is_terminated",
    "keep_late_arrivals_near",
    "keeps_result",
    "loaded_app",
    "mark_deliveries",
    "mark_skipped",
    "outlive_connection",
    "place_of",
    "poll_open_sockets_only",
    "pool_name",
    "prepared_retry",
    "publishing",
    "put_back",
    "queue_of",
    "queues_by_tag",
    "raised_prefetch",
    "raw_parts",
    "register_alias",
    "restore_all",
    "restore_only_at_the_end",
    "return_late_replies",
    "reuse_client",
    "running_tags",
    "sending_options",
    "set_prefetch_by_the_loop",
    "sign_messages",
    "store_failure",
    "store_retry",
    "store_success",
    "subscribe_only_to_wait",
    "take_turns",
    "target_queue",
]
