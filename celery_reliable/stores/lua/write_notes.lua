#!lua flags=allow-oom
-- Set or remove notes of a shelf, each if what is expected is there.
-- KEYS  shelf, order of ends
-- ARGV  name, value, ttl ms (0: remove), expected version (0: nothing may be there, -1: anything), bytes to keep (above
--       0: the value is added to the end of what is there, of which so many bytes stay) ... for each write
-- Answer the version of each write, 0 where the expected was not there
-- Atomic because what is compared is what is replaced. Notes that ended go here, a few at each write.
local us, ms = clock()
for _, name in ipairs(redis.call('ZRANGE', KEYS[2], '-inf', ms, 'BYSCORE', 'LIMIT', 0, 100)) do
  redis.call('HDEL', KEYS[1], name)
  redis.call('ZREM', KEYS[2], name)
end
local version = tonumber(redis.call('HGET', KEYS[1], LAST_VERSION)) or 0
local answers = {}
for at = 1, #ARGV, 5 do
  local name, value, ttl, expected = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), tonumber(ARGV[at + 3])
  local keep = tonumber(ARGV[at + 4])
  if expected >= 0 and note(KEYS[1], KEYS[2], name, ms) ~= expected then
    answers[#answers + 1] = 0
  else
    version = math.max(us, version + 1)
    answers[#answers + 1] = version
    if ttl == 0 then
      redis.call('HDEL', KEYS[1], name)
      redis.call('ZREM', KEYS[2], name)
    else
      if keep > 0 then
        local _, before = note(KEYS[1], KEYS[2], name, ms)
        value = string.sub(before .. value, -keep)
      end
      redis.call('HSET', KEYS[1], name, int(version) .. '|' .. value)
      redis.call('ZADD', KEYS[2], ms + ttl, name)
    end
  end
end
redis.call('HSET', KEYS[1], LAST_VERSION, int(version))
local last = redis.call('ZRANGE', KEYS[2], -1, -1, 'WITHSCORES')[2] or ms
for _, key in ipairs(KEYS) do redis.call('PEXPIRE', key, math.max(last - ms, 0) + 86400000) end
return answers
