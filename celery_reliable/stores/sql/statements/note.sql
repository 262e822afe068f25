-- name: read_notes
SELECT name, value, version FROM celery_reliable_note
WHERE prefix = :prefix AND shelf = :shelf AND name IN ({names}) AND ends > {now}

-- name: page_of_notes
SELECT name, value, version FROM celery_reliable_note
WHERE prefix = :prefix AND shelf = :shelf AND name > :cursor AND ends > {now} ORDER BY name LIMIT :limit

-- name: lock_shelf
-- The row without a name holds the highest version of its shelf; who writes to the shelf holds its lock.
SELECT {now}, r.version FROM (SELECT 1 AS one) AS always
LEFT JOIN (
    SELECT version FROM celery_reliable_note WHERE prefix = :prefix AND shelf = :shelf AND name = '' {for_update}
) AS r ON 1 = 1

-- name: begin_shelf
INSERT INTO celery_reliable_note (prefix, shelf, name, value, version, ends)
VALUES (:prefix, :shelf, '', :value, :version, :ends)
ON CONFLICT DO NOTHING

-- name: put_notes
INSERT INTO celery_reliable_note (prefix, shelf, name, value, version, ends) VALUES {rows}
ON CONFLICT (prefix, shelf, name)
DO UPDATE SET value = excluded.value, version = excluded.version, ends = excluded.ends

-- name: delete_notes
DELETE FROM celery_reliable_note WHERE prefix = :prefix AND shelf = :shelf AND name IN ({names})

-- name: read_role
SELECT {now}, r.value, r.ends FROM (SELECT 1 AS one) AS always
LEFT JOIN (
    SELECT value, ends FROM celery_reliable_note WHERE prefix = :prefix AND shelf = :shelf AND name = :name {for_update}
) AS r ON 1 = 1

-- name: insert_role
INSERT INTO celery_reliable_note (prefix, shelf, name, value, version, ends)
VALUES (:prefix, :shelf, :name, :value, 0, :ends)
ON CONFLICT DO NOTHING

-- name: update_role
UPDATE celery_reliable_note SET value = :value, ends = :ends
WHERE prefix = :prefix AND shelf = :shelf AND name = :name

-- name: delete_old_notes
DELETE FROM celery_reliable_note WHERE prefix = :prefix AND (shelf, name) IN (
    SELECT shelf, name FROM celery_reliable_note WHERE prefix = :prefix AND ends <= {now} LIMIT :limit {skip_locked}
)

-- name: read_schema
-- See `ddl.stamp`. Tables that Alembic made have no number.
SELECT version FROM celery_reliable_note WHERE prefix = '' AND shelf = '.schema' AND name = 'store'
