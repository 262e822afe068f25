-- What MariaDB says differently; everything else is as in the files of the tables.
--
-- An INSERT without more is one that does nothing where its row is there: the session answers 0 for a duplicate. IGNORE
-- would also cut what is too long, and an update that changes nothing counts as a row on connections that count found rows.
-- An UPDATE answers no rows: NAME_answer is read after it, in the same transaction.

-- name: begin_fleet
INSERT INTO celery_reliable_fleet (prefix, pulse, gap_from, gap_until, buried, replayed, discarded, trimmed)
VALUES (:prefix, 0, 0, 0, 0, 0, 0, 0)

-- name: put_entry
INSERT INTO celery_reliable_ledger (prefix, task_id, envelope, resent, resent_at, made_at)
VALUES (:prefix, :task_id, :envelope, 0, 0, 0)
ON DUPLICATE KEY UPDATE envelope = VALUES(envelope), resent = 0, resent_at = 0

-- name: promise
INSERT INTO celery_reliable_ledger (prefix, task_id, envelope, resent, resent_at, digest, made_at)
VALUES (:prefix, :task_id, :envelope, 0, {now} + :hold, :digest, {now})
ON DUPLICATE KEY UPDATE
    envelope = VALUES(envelope), resent = 0, resent_at = VALUES(resent_at), made_at = VALUES(made_at)

-- name: some_promise
-- waits_at is resent_at where made_at is above 0, and NULL elsewhere: there is no index over some rows only.
-- An index is forced where rows are locked on the way to others, or where every relay looks each second.
SELECT 1 FROM celery_reliable_ledger FORCE INDEX (celery_reliable_ledger_waits)
WHERE prefix = :prefix AND waits_at <= {now} LIMIT 1

-- name: due_promises
SELECT one.task_id, one.envelope, one.made_at
FROM celery_reliable_ledger AS one FORCE INDEX (celery_reliable_ledger_waits)
WHERE one.prefix = :prefix AND one.waits_at <= {now} AND NOT EXISTS (
    SELECT 1 FROM celery_reliable_ledger AS older
    WHERE older.prefix = one.prefix AND older.digest = one.digest AND older.made_at > 0
      AND older.made_at < one.made_at
)
ORDER BY one.waits_at, one.made_at LIMIT :limit {skip_locked}

-- name: put_off_promises
UPDATE celery_reliable_ledger SET resent = resent + :failed, resent_at = {now} + :delay
WHERE prefix = :prefix AND made_at > 0 AND task_id IN ({task_ids})

-- name: put_off_promises_answer
SELECT resent FROM celery_reliable_ledger WHERE prefix = :prefix AND made_at > 0 AND task_id IN ({task_ids})

-- name: insert_letter
INSERT INTO celery_reliable_letter
    (prefix, letter_id, number, status, body, ends, life, new_id, new_life, label)
SELECT :prefix, :letter_id, CASE WHEN last >= :number THEN last + 1 ELSE :number END,
    'dead', :body, :ends, :life, '', 0, :label
FROM (SELECT coalesce(max(number), 0) AS last FROM celery_reliable_letter WHERE prefix = :prefix) AS newest

-- name: delete_old_letters
DELETE FROM celery_reliable_letter WHERE prefix = :prefix AND ends <= {now} ORDER BY ends LIMIT :limit

-- name: delete_first_letters
DELETE FROM celery_reliable_letter WHERE prefix = :prefix ORDER BY number LIMIT :limit

-- name: begin_shelf
INSERT INTO celery_reliable_note (prefix, shelf, name, value, version, ends)
VALUES (:prefix, :shelf, '', :value, :version, :ends)

-- name: put_notes
INSERT INTO celery_reliable_note (prefix, shelf, name, value, version, ends) VALUES {rows}
ON DUPLICATE KEY UPDATE value = VALUES(value), version = VALUES(version), ends = VALUES(ends)

-- name: insert_role
INSERT INTO celery_reliable_note (prefix, shelf, name, value, version, ends)
VALUES (:prefix, :shelf, :name, :value, 0, :ends)

-- name: lock_shelf
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), r.version FROM (SELECT 1 AS one) AS always
LEFT JOIN celery_reliable_note AS r ON r.prefix = :prefix AND r.shelf = :shelf AND r.name = '' {for_update}

-- name: read_role
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), r.value, r.ends FROM (SELECT 1 AS one) AS always
LEFT JOIN celery_reliable_note AS r ON r.prefix = :prefix AND r.shelf = :shelf AND r.name = :name {for_update}

-- name: delete_old_notes
-- In the order of the index; a DELETE cannot pass over what is locked, and waits for it.
DELETE FROM celery_reliable_note WHERE prefix = :prefix AND ends <= {now} ORDER BY ends LIMIT :limit

-- name: insert_record
INSERT INTO celery_reliable_record
    (prefix, digest, state, task_id, life, fence, token, lease_until, freed, ends, details, envelope, outcome)
VALUES
    (:prefix, :digest, :state, :task_id, :life, :fence, :token, :lease_until, :freed, :ends, :details, :envelope,
     :outcome)

-- name: read_record
-- No subquery: MariaDB may lock all rows of a prefix for one. SYSDATE is read after the row is locked; the session is in UTC.
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)), r.state, r.task_id, r.life, r.fence, r.token,
       r.lease_until, r.freed, r.ends, r.details, r.envelope, r.outcome
FROM (SELECT 1 AS one) AS always
LEFT JOIN celery_reliable_record AS r ON r.prefix = :prefix AND r.digest = :digest {for_update}

-- name: extend_records
-- From the leases to their rows, so that no other row is locked on the way.
UPDATE (WITH held (digest, token, ttl) AS (VALUES {rows}) SELECT * FROM held) AS v
STRAIGHT_JOIN celery_reliable_record AS r
    ON r.prefix = :prefix AND r.digest = v.digest AND r.token = v.token
SET r.lease_until = {now} + v.ttl, r.ends = GREATEST(r.ends, {now} + v.ttl)
WHERE r.state = 'running' AND NOT r.freed AND r.ends > {now}

-- name: extend_records_answer
SELECT r.digest FROM (WITH held (digest, token, ttl) AS (VALUES {rows}) SELECT * FROM held) AS v
STRAIGHT_JOIN celery_reliable_record AS r
    ON r.prefix = :prefix AND r.digest = v.digest AND r.token = v.token
WHERE r.state = 'running' AND NOT r.freed AND r.ends > {now}

-- name: ended_records
SELECT digest FROM celery_reliable_record FORCE INDEX (celery_reliable_record_ends)
WHERE prefix = :prefix AND ends <= {now} ORDER BY ends LIMIT :limit {skip_locked}

-- name: put_progress
INSERT INTO celery_reliable_progress (prefix, digest, name, body) VALUES (:prefix, :digest, :name, :body)
ON DUPLICATE KEY UPDATE body = VALUES(body)
