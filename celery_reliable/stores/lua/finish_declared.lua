#!lua flags=allow-oom
-- Write the done marker of what nearly every declared key is: held, in its first attempt, without checkpoint or mark.
-- KEYS  record, ledger
-- ARGV  fence, token, marker ttl ms, outcome ('' none, else '=' and the bytes), task id, 1 when its ledger entry ends,
--       the id's 16 bytes if it is a UUID, else ''
-- Answer 1 done | 0 nothing was done: something else is so, `complete` has to look
-- Atomic because a later claim must not come between the look at the token and the marker. Apart from `complete`, as
-- `finish` is: taking the record apart costs more than all the rest.
local raw = redis.call('GET', KEYS[1]) or ''
local life, fence, token, fp, id = string.match(raw, '^R|(%d+)|(%d+)|||||%d+|([^|]*)||([^|]*)|(.*)$')
if fence ~= ARGV[1] or token ~= ARGV[2] or id ~= ARGV[5] or #fp ~= 8 or #life > 2 then return 0 end
if ARGV[6] == '1' then redis.call('HDEL', KEYS[2], id) end
local uuid = ARGV[7] ~= ''
local marker = (uuid and 'u' or 'd') .. string.char(life) .. fp .. (uuid and ARGV[7] or string.char(#id) .. id) .. ARGV[4]
redis.call('SET', KEYS[1], marker, 'PX', ARGV[3])
return 1
