#!lua flags=allow-oom
-- Drop one letter; its key is free again if it is still dead by it.
-- KEYS  letters, order, stats, then record, string of its own and checkpoint if the letter has a key
-- ARGV  letter id, field, tombstone ttl ms
-- Answer 1 dropped | 0 was gone
-- Atomic because a replay of the same letter may come at the same time.
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('ZREM', KEYS[2], ARGV[1])
redis.call('HINCRBY', KEYS[3], 'discarded', 1)
local r = KEYS[4] and load(KEYS[4], KEYS[5], ARGV[2])
if r and r.st == 'X' and r.token == ARGV[1] then
  over(r, KEYS[5], 'ended', ARGV[3], KEYS[6])
end
return 1
