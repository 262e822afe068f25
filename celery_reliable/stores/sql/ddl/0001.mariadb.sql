CREATE TABLE IF NOT EXISTS celery_reliable_fleet (
    prefix VARCHAR(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    pulse BIGINT NOT NULL,
    gap_from BIGINT NOT NULL,
    gap_until BIGINT NOT NULL,
    buried BIGINT NOT NULL,
    replayed BIGINT NOT NULL,
    discarded BIGINT NOT NULL,
    trimmed BIGINT NOT NULL,
    CONSTRAINT celery_reliable_fleet_pk PRIMARY KEY (prefix)
)ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

CREATE TABLE IF NOT EXISTS celery_reliable_ledger (
    prefix VARCHAR(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    task_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    envelope LONGBLOB NOT NULL,
    resent INTEGER NOT NULL,
    resent_at BIGINT NOT NULL,
    digest VARBINARY(16),
    made_at BIGINT NOT NULL,
    waits_at BIGINT GENERATED ALWAYS AS (CASE WHEN made_at > 0 THEN resent_at END) STORED,
    CONSTRAINT celery_reliable_ledger_pk PRIMARY KEY (prefix, task_id)
)ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

CREATE INDEX IF NOT EXISTS celery_reliable_ledger_order ON celery_reliable_ledger (prefix, digest, made_at);

CREATE INDEX IF NOT EXISTS celery_reliable_ledger_waits ON celery_reliable_ledger (prefix, waits_at, made_at);

CREATE TABLE IF NOT EXISTS celery_reliable_letter (
    prefix VARCHAR(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    letter_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    number BIGINT NOT NULL,
    status VARCHAR(8) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    `body` LONGBLOB NOT NULL,
    ends BIGINT NOT NULL,
    life INTEGER NOT NULL,
    new_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    new_life INTEGER NOT NULL,
    label VARCHAR(512) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    CONSTRAINT celery_reliable_letter_pk PRIMARY KEY (prefix, letter_id)
)ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

CREATE INDEX IF NOT EXISTS celery_reliable_letter_ends ON celery_reliable_letter (prefix, ends);

CREATE INDEX IF NOT EXISTS celery_reliable_letter_label ON celery_reliable_letter (prefix, label, number);

CREATE UNIQUE INDEX IF NOT EXISTS celery_reliable_letter_number ON celery_reliable_letter (prefix, number);

CREATE TABLE IF NOT EXISTS celery_reliable_note (
    prefix VARCHAR(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    shelf VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    name VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    value LONGBLOB NOT NULL,
    version BIGINT NOT NULL,
    ends BIGINT NOT NULL,
    CONSTRAINT celery_reliable_note_pk PRIMARY KEY (prefix, shelf, name)
)ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

CREATE INDEX IF NOT EXISTS celery_reliable_note_ends ON celery_reliable_note (ends);

CREATE TABLE IF NOT EXISTS celery_reliable_progress (
    prefix VARCHAR(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    digest VARBINARY(16) NOT NULL,
    name VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    `body` LONGBLOB NOT NULL,
    CONSTRAINT celery_reliable_progress_pk PRIMARY KEY (prefix, digest, name)
)ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

CREATE TABLE IF NOT EXISTS celery_reliable_record (
    prefix VARCHAR(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    digest VARBINARY(16) NOT NULL,
    state VARCHAR(8) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    task_id VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    life INTEGER NOT NULL,
    fence BIGINT NOT NULL,
    token VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    lease_until BIGINT NOT NULL,
    freed BOOL NOT NULL,
    ends BIGINT NOT NULL,
    details LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    envelope LONGBLOB,
    outcome LONGBLOB,
    CONSTRAINT celery_reliable_record_pk PRIMARY KEY (prefix, digest)
)ENGINE=InnoDB ROW_FORMAT=DYNAMIC;

CREATE INDEX IF NOT EXISTS celery_reliable_record_ends ON celery_reliable_record (ends);
