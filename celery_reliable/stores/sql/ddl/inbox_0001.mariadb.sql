CREATE TABLE IF NOT EXISTS celery_reliable_inbox (
    prefix VARCHAR(32) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin NOT NULL,
    digest VARBINARY(16) NOT NULL,
    fence BIGINT NOT NULL,
    outcome LONGBLOB NOT NULL,
    ends BIGINT NOT NULL,
    CONSTRAINT celery_reliable_inbox_pk PRIMARY KEY (prefix, digest)
)ENGINE=InnoDB COMMENT='Jobs whose effect is committed, in the database of the effect, wherever the store is.';

CREATE INDEX IF NOT EXISTS celery_reliable_inbox_ends ON celery_reliable_inbox (prefix, ends);
