#!lua flags=allow-oom
-- Take back a submission whose publish failed.
-- KEYS  record, string of its own, ledger, letters
-- ARGV  field, task id, ttl ms, id kept in the record or '', stamp us
-- Answer 1 nothing of it will run | 0 it has been claimed, or another submission has joined it
-- Atomic because a claim must not come between the look and the tombstone.
local task_id, ttl = ARGV[2], ARGV[3]
local r = load(KEYS[1], KEYS[2], ARGV[1])
if r and r.id ~= '' and r.id ~= task_id then
  redis.call('HDEL', KEYS[3], task_id)
  return 1
end
if r and r.st == 'O' then return 1 end
if r and not (r.st == 'W' and marked(r, 't') and not marked(r, 'j')) then return 0 end
redis.call('HDEL', KEYS[3], task_id)
if not r then
  r = fresh(KEYS[1], ARGV[1], 1)
  r.id = ARGV[4]
end
local dead = tonumber(string.match(r.marks, 'l(%d+)'))
if dead and redis.call('HEXISTS', KEYS[4], r.token) == 1 then
  r.st, r.id, r.at, r.life, r.marks = 'X', r.was or r.id, r.life, dead, ''
  store(r, ttl)
  return 1
end
settle_down(r, KEYS[2])
r.st, r.token, r.at, r.marks = 'O', 'withdrawn', tonumber(ARGV[5]), ''
store(r, ttl)
return 1
