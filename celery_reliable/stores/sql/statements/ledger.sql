-- name: has_entry
SELECT 1 FROM celery_reliable_ledger WHERE prefix = :prefix AND task_id = :task_id

-- name: read_entry
SELECT envelope FROM celery_reliable_ledger WHERE prefix = :prefix AND task_id = :task_id

-- name: put_entry
-- A submission that comes again counts as never published again by the sweep.
INSERT INTO celery_reliable_ledger (prefix, task_id, envelope, resent, resent_at, made_at)
VALUES (:prefix, :task_id, :envelope, 0, 0, 0)
ON CONFLICT (prefix, task_id) DO UPDATE SET envelope = excluded.envelope, resent = 0, resent_at = 0

-- name: delete_entry
DELETE FROM celery_reliable_ledger WHERE prefix = :prefix AND task_id = :task_id

-- name: read_resent
SELECT resent, resent_at FROM celery_reliable_ledger WHERE prefix = :prefix AND task_id = :task_id {for_update}

-- name: note_resent
UPDATE celery_reliable_ledger SET resent = :resent, resent_at = :resent_at
WHERE prefix = :prefix AND task_id = :task_id

-- name: page_of_ledger
SELECT task_id, envelope FROM celery_reliable_ledger
WHERE prefix = :prefix AND task_id > :cursor AND made_at = 0 ORDER BY task_id LIMIT :limit

-- name: promise
-- Into the transaction of the caller. made_at is 0 once it was published; until resent_at it is its own process's to publish.
INSERT INTO celery_reliable_ledger (prefix, task_id, envelope, resent, resent_at, digest, made_at)
VALUES (:prefix, :task_id, :envelope, 0, {now} + :hold, :digest, {now})
ON CONFLICT (prefix, task_id) DO UPDATE
SET envelope = excluded.envelope, resent = 0, resent_at = excluded.resent_at, made_at = excluded.made_at

-- name: holder
SELECT task_id, state FROM celery_reliable_record
WHERE prefix = :prefix AND digest = :digest AND ends > {now} AND state IN ('waiting', 'running', 'done')

-- name: some_promise
-- Looked at each second by every relay: it changes nothing.
SELECT 1 FROM celery_reliable_ledger
WHERE prefix = :prefix AND made_at > 0 AND resent_at <= {now} LIMIT 1

-- name: due_promises
-- A younger one of the same key is left until the older ones are published; what another relay takes is passed over.
-- By the time from which each may be taken: what was put off comes after what was not tried yet.
SELECT one.task_id, one.envelope, one.made_at FROM celery_reliable_ledger AS one
WHERE one.prefix = :prefix AND one.made_at > 0 AND one.resent_at <= {now} AND NOT EXISTS (
    SELECT 1 FROM celery_reliable_ledger AS older
    WHERE older.prefix = one.prefix AND older.digest = one.digest AND older.made_at > 0
      AND older.made_at < one.made_at
)
ORDER BY one.resent_at, one.made_at LIMIT :limit {skip_locked}

-- name: these_promises
SELECT one.task_id, one.envelope, one.made_at FROM celery_reliable_ledger AS one
WHERE one.prefix = :prefix AND one.made_at > 0 AND one.task_id IN ({task_ids}) AND NOT EXISTS (
    SELECT 1 FROM celery_reliable_ledger AS older
    WHERE older.prefix = one.prefix AND older.digest = one.digest AND older.made_at > 0
      AND older.made_at < one.made_at
)
ORDER BY one.made_at {skip_locked}

-- name: keep_published
-- One that was promised anew meanwhile has another made_at and is left alone.
UPDATE celery_reliable_ledger SET envelope = :envelope, resent = 0, resent_at = {now}, made_at = 0
WHERE prefix = :prefix AND task_id = :task_id AND made_at = :made_at

-- name: drop_published
DELETE FROM celery_reliable_ledger WHERE prefix = :prefix AND task_id = :task_id AND made_at = :made_at

-- name: put_off_promises
UPDATE celery_reliable_ledger SET resent = resent + :failed, resent_at = {now} + :delay
WHERE prefix = :prefix AND made_at > 0 AND task_id IN ({task_ids})
RETURNING resent
