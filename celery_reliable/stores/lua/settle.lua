#!lua flags=allow-oom
-- End the ledger entry of one submission; a job that waits under its id ends too, unless the state is `sent`. A job that runs
-- under its id keeps both: its holder ends them, or whoever finds it gone, by the mark.
-- KEYS  record, string of its own, ledger, checkpoint
-- ARGV  field, task id, state, ttl ms, id kept in the record or ''
-- Answer 1
-- Atomic because a claim must not come between the look and the tombstone.
if ARGV[3] == 'sent' then
  redis.call('HDEL', KEYS[3], ARGV[2])
  return 1
end
local r = load(KEYS[1], KEYS[2], ARGV[1])
if not r then
  r = fresh(KEYS[1], ARGV[1], 1)
  r.id = ARGV[5]
end
local mine = r.id == '' or r.id == ARGV[2]
if r.st == 'R' and mine then
  if not marked(r, 'r') then
    r.marks = 'r' .. r.marks
    store(r, ARGV[4])
  end
  return 1
end
redis.call('HDEL', KEYS[3], ARGV[2])
if r.st == 'W' and mine then over(r, KEYS[2], ARGV[3], ARGV[4], KEYS[4]) end
return 1
