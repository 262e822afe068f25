#!lua flags=allow-oom
-- Mark a letter replayed and make its key wait under a new task id, with a ledger entry.
-- KEYS  letters, stats, ledger, then record and string of its own if the letter has a key
-- ARGV  field, letter id, task id, envelope, body, fingerprint, record ttl ms
-- Answer {replaying, life} | {refused, reason, new id}
-- Atomic because a replayer may die anywhere, and two of them may meet.
local letter_id, task_id = ARGV[2], ARGV[3]
local raw = redis.call('HGET', KEYS[1], letter_id)
if not raw then return { 'refused', 'gone', '' } end
local r = KEYS[4] and load(KEYS[4], KEYS[5], ARGV[1])
local new_id = string.match(raw, '^r([^\n]*)\n')
if new_id then
  if new_id ~= task_id then return { 'refused', 'replayed', new_id } end
  redis.call('HSET', KEYS[1], letter_id, 'r' .. task_id .. '\n' .. ARGV[5])
  return { 'replaying', r and r.life or 1 }
end
-- A submission that ended without a claim (expired, skipped) has no later life either.
local free = r and (r.st == 'X' and r.token == letter_id or r.st == 'O' and (r.token == 'expired' or r.token == 'skipped'))
if r and not free then return { 'refused', 'superseded', r.id } end
local life = 1
if KEYS[4] then
  local n = fresh(KEYS[5], '', r and next_life(r) or 2)
  n.id, n.fp = task_id, ARGV[6]
  if r then n.fence, n.checks = r.fence, r.checks end
  store(n, ARGV[7])
  if ARGV[1] ~= '' then redis.call('HSET', KEYS[4], ARGV[1], '>') end
  life = n.life
end
redis.call('HSET', KEYS[3], task_id, ARGV[4])
redis.call('HSET', KEYS[1], letter_id, 'r' .. task_id .. '\n' .. ARGV[5])
redis.call('HINCRBY', KEYS[2], 'replayed', 1)
return { 'replaying', life }
