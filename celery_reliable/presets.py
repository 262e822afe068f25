"""Settings for ``app.config_from_object("celery_reliable.presets")``: literals only.

Every value may be overridden by the project; `celery_reliable.wiring` fills in those that a project's own
configuration leaves out. What depends on the broker (the cadence of Redis's message recovery) is merged when a worker
starts, because a literal here would reach brokers that read the same option differently.

PYTEST_DONT_REWRITE: pytest adds names of its own to the modules of a package that has a plug-in, and this one's names are
settings.
"""

# --- Celery: a message lives until its outcome is written

task_acks_late = True
task_reject_on_worker_lost = True
worker_prefetch_multiplier = 1
worker_cancel_long_running_tasks_on_connection_loss = False
broker_channel_error_retry = True
broker_connection_retry_on_startup = True

# Within about three seconds, because the caller of apply_async waits for it.
task_publish_retry = True
task_publish_retry_policy = {"max_retries": 4, "interval_start": 0.2, "interval_step": 0.4, "interval_max": 1.0}

# On top of the result client's own retries; Celery's default never ends.
result_backend_always_retry = True
result_backend_max_retries = 5
result_backend_base_sleep_between_retries_ms = 100
result_backend_max_sleep_between_retries_ms = 2000

enable_utc = True
timezone = "UTC"

task_serializer = "json"
result_serializer = "json"
accept_content = ("json",)
result_accept_content = ("json",)

# Both, so that a project which sets one of the two is still wired by the other.
imports = ("celery_reliable.wiring",)
include = ("celery_reliable.wiring",)

# --- celery_reliable: where state is kept

reliable_store_url = None
reliable_key_prefix = "cr:"
reliable_wait_replicas = 0
reliable_on_store_down = "wait"
reliable_ledger = True
reliable_relay_rate = 200

# --- the life of a task

reliable_idempotency_ttl = 604_800
reliable_on_conflict = "return_existing"
reliable_dedup_for = None
reliable_debounce = None
reliable_debounce_max = None
reliable_retry_on = ()
reliable_fail_on = ()
reliable_on_unknown_error = "fail"
reliable_max_retries = 5
reliable_retry_backoff = 1.0
reliable_retry_backoff_max = 600
reliable_retry_for = None
reliable_max_deliveries = 5
reliable_quarantine_queue = None
reliable_max_snoozes = 1000
reliable_max_runtime = 86_400
reliable_lease_ttl = 15
reliable_dead_letter_max = 100_000
reliable_dead_letter_ttl = 2_592_000

# --- overlap and flow

reliable_overlap = "allow"
reliable_overlap_lock = "lease"
reliable_breaker = None
reliable_breakers = None
reliable_concurrency_limit = None
reliable_fleet_rate_limit = None
reliable_retry_budget = None
reliable_queue_limits = None
reliable_importance = "normal"
reliable_fair_queues = None
reliable_kill_switches = None
reliable_low_priority_every = None

# --- payloads

reliable_claim_check_threshold = 131_072
reliable_blob_url = None
reliable_blob_cipher = None

# --- workers

reliable_drain_timeout = 30
reliable_heartbeat_file = None
reliable_heartbeat_interval = 5
reliable_healthz_socket = None
reliable_healthz_port = 0
reliable_healthz_host = "127.0.0.1"
reliable_metrics_port = 0
reliable_metrics_host = "127.0.0.1"
reliable_park_ttl = 86_400
reliable_release = None
reliable_signing_keys = None
reliable_signing = "enforce"
reliable_redact = None
reliable_letter_url = None
reliable_explain_share = 1.0
reliable_explain_size = 1024
reliable_event_hooks = ()
reliable_alerts = ()
reliable_alerts_every = 300

# --- beat

reliable_beat_scheduler = "celery.beat:PersistentScheduler"
reliable_leader_ttl = 15
reliable_catch_up = "latest"
reliable_catch_up_window = 86_400
reliable_start_deadline = None
