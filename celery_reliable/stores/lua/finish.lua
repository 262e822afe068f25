#!lua flags=allow-oom
-- Write the done marker of what nearly every task is: an id of its own that ended in its first attempt.
-- KEYS  record, ledger
-- ARGV  field, fence, token, marker ttl ms, outcome ('' none, else '=' and at most 31 bytes), task id whose ledger entry
--       ends or ''
-- Answer 1 done | 0 nothing was done: something else is so, `complete` has to look
-- Atomic because a later claim must not come between the look at the token and the marker. Apart from `complete`, whose
-- many keys and shared functions cost more than all that is done here.
local key, field, ttl = KEYS[1], ARGV[1], tonumber(ARGV[4])
local raw = redis.call('HGET', key, field) or ''
local fence, token = string.match(raw, '^R|1|(%d+)|||||%d+|([^|]*)|||$')
if fence ~= ARGV[2] or token ~= ARGV[3] then return 0 end
if ARGV[6] ~= '' then redis.call('HDEL', KEYS[2], ARGV[6]) end
redis.call('HSET', key, field, 'D' .. ARGV[5])
-- An eighth more than asked for, so that the next records of this bucket mostly need no PEXPIRE.
if redis.call('PTTL', key) < ttl then redis.call('PEXPIRE', key, math.floor(ttl * 1.125)) end
return 1
