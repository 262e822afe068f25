CREATE TABLE IF NOT EXISTS celery_reliable_fleet (
    prefix VARCHAR(32) NOT NULL,
    pulse BIGINT NOT NULL,
    gap_from BIGINT NOT NULL,
    gap_until BIGINT NOT NULL,
    buried BIGINT NOT NULL,
    replayed BIGINT NOT NULL,
    discarded BIGINT NOT NULL,
    trimmed BIGINT NOT NULL,
    CONSTRAINT celery_reliable_fleet_pk PRIMARY KEY (prefix)
);

CREATE TABLE IF NOT EXISTS celery_reliable_ledger (
    prefix VARCHAR(32) NOT NULL,
    task_id VARCHAR(255) NOT NULL,
    envelope BYTEA NOT NULL,
    resent INTEGER NOT NULL,
    resent_at BIGINT NOT NULL,
    digest BYTEA,
    made_at BIGINT NOT NULL,
    CONSTRAINT celery_reliable_ledger_pk PRIMARY KEY (prefix, task_id)
);

CREATE INDEX IF NOT EXISTS celery_reliable_ledger_order ON celery_reliable_ledger (prefix, digest, made_at) WHERE made_at > 0;

CREATE INDEX IF NOT EXISTS celery_reliable_ledger_waits ON celery_reliable_ledger (prefix, resent_at) WHERE made_at > 0;

CREATE TABLE IF NOT EXISTS celery_reliable_letter (
    prefix VARCHAR(32) NOT NULL,
    letter_id VARCHAR(255) NOT NULL,
    number BIGINT NOT NULL,
    status VARCHAR(8) NOT NULL,
    body BYTEA NOT NULL,
    ends BIGINT NOT NULL,
    life INTEGER NOT NULL,
    new_id VARCHAR(255) NOT NULL,
    new_life INTEGER NOT NULL,
    label VARCHAR(512) NOT NULL,
    CONSTRAINT celery_reliable_letter_pk PRIMARY KEY (prefix, letter_id)
);

CREATE INDEX IF NOT EXISTS celery_reliable_letter_ends ON celery_reliable_letter (prefix, ends);

CREATE INDEX IF NOT EXISTS celery_reliable_letter_label ON celery_reliable_letter (prefix, label, number);

CREATE UNIQUE INDEX IF NOT EXISTS celery_reliable_letter_number ON celery_reliable_letter (prefix, number);

CREATE TABLE IF NOT EXISTS celery_reliable_note (
    prefix VARCHAR(32) NOT NULL,
    shelf VARCHAR(64) NOT NULL,
    name VARCHAR(255) NOT NULL,
    value BYTEA NOT NULL,
    version BIGINT NOT NULL,
    ends BIGINT NOT NULL,
    CONSTRAINT celery_reliable_note_pk PRIMARY KEY (prefix, shelf, name)
);

CREATE INDEX IF NOT EXISTS celery_reliable_note_ends ON celery_reliable_note (ends);

CREATE TABLE IF NOT EXISTS celery_reliable_progress (
    prefix VARCHAR(32) NOT NULL,
    digest BYTEA NOT NULL,
    name VARCHAR(255) NOT NULL,
    body BYTEA NOT NULL,
    CONSTRAINT celery_reliable_progress_pk PRIMARY KEY (prefix, digest, name)
);

CREATE TABLE IF NOT EXISTS celery_reliable_record (
    prefix VARCHAR(32) NOT NULL,
    digest BYTEA NOT NULL,
    state VARCHAR(8) NOT NULL,
    task_id VARCHAR(255) NOT NULL,
    life INTEGER NOT NULL,
    fence BIGINT NOT NULL,
    token VARCHAR(255) NOT NULL,
    lease_until BIGINT NOT NULL,
    freed BOOLEAN NOT NULL,
    ends BIGINT NOT NULL,
    details TEXT NOT NULL,
    envelope BYTEA,
    outcome BYTEA,
    CONSTRAINT celery_reliable_record_pk PRIMARY KEY (prefix, digest)
);

CREATE INDEX IF NOT EXISTS celery_reliable_record_ends ON celery_reliable_record (ends);
