-- name: read_clock
SELECT {now}

-- name: begin_fleet
INSERT INTO celery_reliable_fleet (prefix, pulse, gap_from, gap_until, buried, replayed, discarded, trimmed)
VALUES (:prefix, 0, 0, 0, 0, 0, 0, 0)
ON CONFLICT (prefix) DO NOTHING

-- name: read_fleet
SELECT pulse, gap_from, gap_until, buried, replayed, discarded, trimmed FROM celery_reliable_fleet
WHERE prefix = :prefix

-- name: lock_fleet
-- Who changes pulse, letters or their counts does it alone; the lock is taken after that of a record.
SELECT pulse, gap_from, gap_until, buried, replayed, discarded, trimmed FROM celery_reliable_fleet
WHERE prefix = :prefix {for_update}

-- name: keep_pulse
UPDATE celery_reliable_fleet SET pulse = :pulse, gap_from = :gap_from, gap_until = :gap_until WHERE prefix = :prefix

-- name: count_letters
UPDATE celery_reliable_fleet
SET buried = buried + :buried, replayed = replayed + :replayed, discarded = discarded + :discarded,
    trimmed = trimmed + :trimmed
WHERE prefix = :prefix
