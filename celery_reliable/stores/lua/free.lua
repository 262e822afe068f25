#!lua flags=allow-oom
-- End a lease from outside, for a process seen to die.
-- KEYS  record, string of its own, evidence
-- ARGV  field, token, evidence, record ttl ms
-- Answer 1 freed | 0 nothing to free
-- Atomic because a later claim must not lose its lease to this.
local r = load(KEYS[1], KEYS[2], ARGV[1])
if not r or r.st ~= 'R' or r.token ~= ARGV[2] then return 0 end
r.at, r.marks = 1, 'f' .. r.marks
settle_down(r, KEYS[2])
store(r, ARGV[4])
redis.call('RPUSH', KEYS[3], ARGV[3])
redis.call('LTRIM', KEYS[3], -20, -1)
redis.call('PEXPIRE', KEYS[3], ARGV[4])
return 1
