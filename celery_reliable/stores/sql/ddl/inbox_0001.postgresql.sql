CREATE TABLE IF NOT EXISTS celery_reliable_inbox (
    prefix VARCHAR(32) NOT NULL,
    digest BYTEA NOT NULL,
    fence BIGINT NOT NULL,
    outcome BYTEA NOT NULL,
    ends BIGINT NOT NULL,
    CONSTRAINT celery_reliable_inbox_pk PRIMARY KEY (prefix, digest)
);

CREATE INDEX IF NOT EXISTS celery_reliable_inbox_ends ON celery_reliable_inbox (prefix, ends);
