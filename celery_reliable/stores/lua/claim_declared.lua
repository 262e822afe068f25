#!lua flags=allow-oom
-- Claim what nearly every declared key is: submitted, never claimed, with the message's own life and arguments.
-- KEYS  record
-- ARGV  life of the message, fingerprint, token, ttl ms, record ttl ms
-- Answer the fence | nil: nothing was done, something else is so and `claim` has to look
-- Atomic because of all the claims of one key exactly one may win. Apart from `claim`, whose many keys and shared
-- functions cost more than all that is done here.
local raw = redis.call('GET', KEYS[1]) or ''
local life, fp, id = string.match(raw, '^W|(%d+)||||||||[jp]*t%d+x%d+|([^|]+)|(.*)$')
if life ~= ARGV[1] or fp ~= ARGV[2] then return nil end
local now = redis.call('TIME')
local fence = string.format('%.0f', now[1] * 1000000 + now[2])
local ends = string.format('%.0f', math.floor(now[1] * 1000 + now[2] / 1000) + ARGV[4])
redis.call('SET', KEYS[1], 'R|' .. life .. '|' .. fence .. '|||||' .. ends .. '|' .. ARGV[3] .. '||' .. fp .. '|' .. id, 'PX', ARGV[5])
return fence
