#!lua flags=allow-oom
-- Drop one letter; its key is free again if it is still dead by it.
-- KEYS  letters, order, stats, labels, index, then record, string of its own and checkpoint if the letter has a key
-- ARGV  letter id, field, tombstone ttl ms
-- Answer 1 dropped | 0 was gone
-- Atomic because a replay of the same letter may come at the same time.
local b = boxes(1)
local raw = redis.call('HGET', b.letters, ARGV[1])
if not raw then return 0 end
unlabel(b, ARGV[1], raw)
redis.call('HDEL', b.letters, ARGV[1])
redis.call('ZREM', b.order, ARGV[1])
redis.call('HINCRBY', b.stats, 'discarded', 1)
local r = KEYS[6] and load(KEYS[6], KEYS[7], ARGV[2])
if r and r.st == 'X' and r.token == ARGV[1] then
  over(r, KEYS[7], 'ended', ARGV[3], KEYS[8])
end
return 1
