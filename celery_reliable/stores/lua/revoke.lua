#!lua flags=allow-oom
-- Revoke a job: at once when it waits, when its holder ends if it runs.
-- KEYS  record, string of its own, ledger, checkpoint
-- ARGV  field, task id, ttl ms, id kept in the record or ''
-- Answer 1
-- Atomic because a claim must not come between the look and the mark.
local r = load(KEYS[1], KEYS[2], ARGV[1])
if not r then
  r = fresh(KEYS[1], ARGV[1], 1)
  r.id = ARGV[4]
end
if r.id ~= '' and r.id ~= ARGV[2] then
  redis.call('HDEL', KEYS[3], ARGV[2])
  return 1
end
if r.st == 'W' then
  redis.call('HDEL', KEYS[3], ARGV[2])
  over(r, KEYS[2], 'revoked', ARGV[3], KEYS[4])
end
if r.st == 'R' and not marked(r, 'r') then
  r.marks = 'r' .. r.marks
  store(r, ARGV[3])
end
return 1
