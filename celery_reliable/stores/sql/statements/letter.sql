-- name: read_letter
SELECT body, life, status, new_id, new_life FROM celery_reliable_letter
WHERE prefix = :prefix AND letter_id = :letter_id AND ends > {now}

-- name: insert_letter
INSERT INTO celery_reliable_letter (prefix, letter_id, number, status, body, ends, life, new_id, new_life)
VALUES (:prefix, :letter_id, :number, 'dead', :body, :ends, :life, '', 0)
ON CONFLICT (prefix, letter_id) DO NOTHING

-- name: mark_letter
UPDATE celery_reliable_letter SET status = 'replayed', body = :body, new_id = :new_id, new_life = :new_life
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
