-- name: read_record
-- Answers the clock even where there is no record, and reads it after the row is locked.
SELECT {now}, r.state, r.task_id, r.life, r.fence, r.token, r.lease_until, r.freed, r.ends, r.details, r.envelope,
       r.outcome
FROM (SELECT 1 AS one) AS always
LEFT JOIN (
    SELECT * FROM celery_reliable_record WHERE prefix = :prefix AND digest = :digest {for_update}
) AS r ON 1 = 1

-- name: insert_record
-- The unique index is the arbiter: no row inserted means that another claim was first.
INSERT INTO celery_reliable_record
    (prefix, digest, state, task_id, life, fence, token, lease_until, freed, ends, details, envelope, outcome)
VALUES
    (:prefix, :digest, :state, :task_id, :life, :fence, :token, :lease_until, :freed, :ends, :details, :envelope,
     :outcome)
ON CONFLICT DO NOTHING

-- name: update_record
-- Large columns that did not change are left out, so that they are not written again.
UPDATE celery_reliable_record SET {changes} WHERE prefix = :prefix AND digest = :digest

-- name: delete_record
DELETE FROM celery_reliable_record WHERE prefix = :prefix AND digest = :digest

-- name: extend_records
-- One statement for all leases of a worker: a row that another claim took has another token and is left alone.
UPDATE celery_reliable_record AS r
SET lease_until = {now} + v.column3,
    ends = CASE WHEN r.ends > {now} + v.column3 THEN r.ends ELSE {now} + v.column3 END
FROM (VALUES {rows}) AS v
WHERE r.prefix = :prefix AND r.digest = v.column1 AND r.token = v.column2
  AND r.state = 'running' AND NOT r.freed AND r.ends > {now}
RETURNING digest

-- name: ended_records
-- A batch for retention; rows that somebody works on are left for the next time.
SELECT digest FROM celery_reliable_record WHERE prefix = :prefix AND ends <= {now} LIMIT :limit {skip_locked}

-- name: delete_records
DELETE FROM celery_reliable_record WHERE prefix = :prefix AND digest IN ({digests})

-- name: read_progress
SELECT name, body FROM celery_reliable_progress WHERE prefix = :prefix AND digest = :digest

-- name: put_progress
INSERT INTO celery_reliable_progress (prefix, digest, name, body) VALUES (:prefix, :digest, :name, :body)
ON CONFLICT (prefix, digest, name) DO UPDATE SET body = excluded.body

-- name: delete_progress
DELETE FROM celery_reliable_progress WHERE prefix = :prefix AND digest = :digest

-- name: delete_progresses
DELETE FROM celery_reliable_progress WHERE prefix = :prefix AND digest IN ({digests})
