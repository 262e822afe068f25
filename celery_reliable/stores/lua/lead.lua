#!lua flags=allow-oom
-- Take or keep a role that one worker of the fleet may have.
-- KEYS  role, pulse
-- ARGV  token, ttl ms, pulse ttl ms
-- Answer no | yes | wait (yes, but the fleet's renewals were away: nobody's lease ends and nothing held is restored)
-- Atomic because of two that ask only one may have it.
local _, ms = clock()
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 'no' end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
local last, gap = heard(KEYS[2])
if ms < gap or ms - last > tonumber(ARGV[3]) / 2 then return 'wait' end
return 'yes'
