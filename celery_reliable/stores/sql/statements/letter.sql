-- name: read_letter
SELECT body, life, status, new_id, new_life FROM celery_reliable_letter
WHERE prefix = :prefix AND letter_id = :letter_id AND ends > {now}

-- name: insert_letter
-- The number is the microsecond of the burial, or the next one that is free: who buries does it alone.
INSERT INTO celery_reliable_letter
    (prefix, letter_id, number, status, body, ends, life, new_id, new_life, label)
SELECT :prefix, :letter_id, CASE WHEN last >= :number THEN last + 1 ELSE :number END,
    'dead', :body, :ends, :life, '', 0, :label
FROM (SELECT coalesce(max(number), 0) AS last FROM celery_reliable_letter WHERE prefix = :prefix) AS newest
WHERE true
ON CONFLICT (prefix, letter_id) DO NOTHING

-- name: mark_letter
UPDATE celery_reliable_letter SET
    status = 'replayed', body = :body, new_id = :new_id, new_life = :new_life, label = :label
WHERE prefix = :prefix AND letter_id = :letter_id

-- name: delete_letter
DELETE FROM celery_reliable_letter WHERE prefix = :prefix AND letter_id = :letter_id

-- name: delete_old_letters
DELETE FROM celery_reliable_letter WHERE prefix = :prefix AND letter_id IN (
    SELECT letter_id FROM celery_reliable_letter WHERE prefix = :prefix AND ends <= {now} LIMIT :limit
)

-- name: delete_first_letters
DELETE FROM celery_reliable_letter WHERE prefix = :prefix AND letter_id IN (
    SELECT letter_id FROM celery_reliable_letter WHERE prefix = :prefix ORDER BY number LIMIT :limit
)

-- name: count_old_letters
SELECT count(*) FROM celery_reliable_letter WHERE prefix = :prefix AND ends <= {now}

-- name: page_of_letters
SELECT letter_id, status, body, number FROM celery_reliable_letter
WHERE prefix = :prefix AND number < :below AND ends > {now} ORDER BY number DESC LIMIT :limit

-- name: numbers_of_label
SELECT number FROM (
    SELECT number FROM celery_reliable_letter WHERE prefix = :prefix AND label = :label AND number < :below
    ORDER BY number DESC LIMIT :limit
) AS newest

-- name: numbered_letters
SELECT letter_id, status, body FROM celery_reliable_letter
WHERE prefix = :prefix AND number IN ({numbers}) AND ends > {now} ORDER BY number DESC

-- name: letter_labels
WITH RECURSIVE known (label) AS (
    SELECT min(label) FROM celery_reliable_letter WHERE prefix = :prefix
    UNION ALL
    SELECT (SELECT min(label) FROM celery_reliable_letter WHERE prefix = :prefix AND label > known.label)
    FROM known WHERE known.label IS NOT NULL
)
SELECT label FROM known WHERE label IS NOT NULL LIMIT :limit
