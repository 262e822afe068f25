-- name: has_entry
SELECT 1 FROM celery_reliable_ledger WHERE prefix = :prefix AND task_id = :task_id

-- name: put_entry
-- A submission that comes again counts as never published again by the sweep.
INSERT INTO celery_reliable_ledger (prefix, task_id, envelope, resent, resent_at)
VALUES (:prefix, :task_id, :envelope, 0, 0)
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
WHERE prefix = :prefix AND task_id > :cursor ORDER BY task_id LIMIT :limit
