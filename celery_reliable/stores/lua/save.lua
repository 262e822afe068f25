#!lua flags=allow-oom
-- Keep a checkpoint or the result of a step.
-- KEYS  record, string of its own, checkpoint
-- ARGV  field, fence, token, name, body, ttl ms, number of this save or 0
-- Answer ok | stale
-- Atomic because a stale holder must not overwrite the newer holder's progress.
local name, body, ttl = ARGV[4], ARGV[5], ARGV[6]
local r = load(KEYS[1], KEYS[2], ARGV[1])
if not holds(r, ARGV[2], ARGV[3]) then return 'stale' end
if name == 'state' and redis.call('HGET', KEYS[3], name) ~= body then r.lost = 0 end
r.checks = ARGV[7] == '0' and r.checks + 1 or tonumber(ARGV[7])
settle_down(r, KEYS[2])
store(r, ttl)
redis.call('HSET', KEYS[3], name, body)
redis.call('PEXPIRE', KEYS[3], ttl)
return 'ok'
