#!lua flags=allow-oom
-- Mark a letter replayed and make its key wait under a new task id, with a ledger entry.
-- KEYS  letters, order, stats, labels, index, ledger, then record and string of its own if the letter has a key
-- ARGV  field, letter id, task id, envelope, body, fingerprint, record ttl ms, label
-- Answer {replaying, life} | {refused, reason, new id}
-- Atomic because a replayer may die anywhere, and two of them may meet.
local letter_id, task_id = ARGV[2], ARGV[3]
local b = boxes(1)
local raw = redis.call('HGET', b.letters, letter_id)
if not raw then return { 'refused', 'gone', '' } end

local function keep()
  unlabel(b, letter_id, raw)
  local number = number_of(b.labels, ARGV[8])
  redis.call('ZADD', b.index, 0, place_in_index(number, redis.call('ZSCORE', b.order, letter_id), letter_id))
  redis.call('HSET', b.letters, letter_id, 'r' .. number .. task_id .. '\n' .. ARGV[5])
end

local r = KEYS[7] and load(KEYS[7], KEYS[8], ARGV[1])
local new_id = string.match(raw, '^r........([^\n]*)\n')
if new_id then
  if new_id ~= task_id then return { 'refused', 'replayed', new_id } end
  keep()
  return { 'replaying', r and r.life or 1 }
end
-- A submission that ended without a run has no later life either.
local unrun = { expired = true, skipped = true, withdrawn = true }
local free = r and (r.st == 'X' and r.token == letter_id or r.st == 'O' and unrun[r.token])
if r and not free then return { 'refused', 'superseded', r.id } end
local life = 1
if KEYS[7] then
  local n = fresh(KEYS[8], '', r and next_life(r) or 2)
  n.id, n.fp = task_id, ARGV[6]
  if r then n.fence, n.checks = r.fence, r.checks end
  store(n, ARGV[7])
  if ARGV[1] ~= '' then redis.call('HSET', KEYS[7], ARGV[1], '>') end
  life = n.life
end
redis.call('HSET', KEYS[6], task_id, ARGV[4])
keep()
redis.call('HINCRBY', b.stats, 'replayed', 1)
return { 'replaying', life }
