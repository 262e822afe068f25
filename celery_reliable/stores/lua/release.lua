#!lua flags=allow-oom
-- Give the right back; due again after a delay.
-- KEYS  record, string of its own, ledger, checkpoint
-- ARGV  field, fence (empty: whatever the record has), token, outcome (retry | snooze | interrupted), delay ms, record ttl ms
-- Answer ok | revoked | lost_writes | stale
-- Atomic because a later claim must not come between the look at the token and the release.
local fence, token, outcome, delay, ttl = ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5]), ARGV[6]
local _, ms = clock()
local r = load(KEYS[1], KEYS[2], ARGV[1])
if fence == '' then fence = r and int(r.fence) or '0' end
local held = holds(r, fence, token)
if not held and r and r.st == 'W' and int(r.fence) == fence then return 'ok' end
if not held and not proves_lost_writes(r, fence) then return 'stale' end
if marked(r, 'r') then
  if r.id ~= '' then redis.call('HDEL', KEYS[3], r.id) end
  over(r, KEYS[2], 'revoked', ttl, KEYS[4])
  return 'revoked'
end
if outcome == 'retry' then r.attempts = r.attempts + 1 end
if outcome == 'snooze' then r.snoozes = r.snoozes + 1 end
r.st, r.token, r.fence = 'W', '', tonumber(fence)
r.at = delay > 0 and ms + delay or 0
r.marks = marked(r, 'e') and 'e' or ''
settle_down(r, KEYS[2])
store(r, ttl)
return held and 'ok' or 'lost_writes'
