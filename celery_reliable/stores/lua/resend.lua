#!lua flags=allow-oom
-- Decide whether a ledger entry, whose message is nowhere to be seen, is to be published again, and note it.
-- KEYS  record, string of its own, ledger, checkpoint
-- ARGV  field, task id, quiet ms, most times, record ttl ms
-- Answer no | ended (the entry goes) | publish | lost (published often enough)
-- Atomic because a claim may come meanwhile, and two sweepers must not both publish.
--   An entry that was published again begins with 0x01, the times, the moment and a line feed.
local field, task_id, quiet, most = ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local _, ms = clock()
local entry = redis.call('HGET', KEYS[3], task_id)
if not entry then return 'no' end
local r = load(KEYS[1], KEYS[2], field)
if r then
  if r.st == 'D' or ENDED[r.st] then
    if r.id ~= '' and r.id ~= task_id then return 'publish' end -- it carries a continuation that waits for this outcome
    if r.st == 'D' then return 'publish' end -- done, but what follows it may not have been sent
    redis.call('HDEL', KEYS[3], task_id)
    return 'ended'
  end
  if r.st == 'R' and r.at > ms then return 'no' end
  if r.st == 'R' and marked(r, 'r') then
    redis.call('HDEL', KEYS[3], task_id)
    over(r, KEYS[2], 'revoked', ARGV[5], KEYS[4])
    return 'ended'
  end
  if ms - math.max(r.at, r.fence / 1000) < quiet then return 'no' end
end
local times, at = string.match(entry, '^\1(%d+) (%d+)\n')
times, at = tonumber(times) or 0, tonumber(at) or 0
if ms - at < quiet * 2 ^ times then return 'no' end
if times >= most then return 'lost' end
redis.call('HSET', KEYS[3], task_id, '\1' .. int(times + 1) .. ' ' .. int(ms) .. '\n' .. string.gsub(entry, '^\1%d+ %d+\n', '', 1))
return 'publish'
