#!lua flags=allow-oom
-- Write the done marker with its outcome.
-- KEYS  record, string of its own, ledger, outcome, checkpoint, evidence
-- ARGV  field, fence, token, marker ttl ms, outcome ('' none, else '=' and the bytes), task id,
--       1 when the ledger entry of that id ends
-- Answer ok | lost_writes | stale
-- Atomic because a later claim must not come between the look at the token and the marker.
--   D          an id of its own, first life.   D=... outcome inline.   D@ outcome in a string of its own
--   u          any other: life, fingerprint (8), the 16 bytes of the id, which is a UUID, outcome
--   d          its id is none: life, fingerprint (8), length of id, id, outcome
local INLINE = 32
local field, fence, token, ttl, outcome, task_id = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
-- common.lua

local r = load(KEYS[1], KEYS[2], field)
local held = holds(r, fence, token)
if not held and not proves_lost_writes(r, fence) then return 'stale' end
if ARGV[7] == '1' then redis.call('HDEL', KEYS[3], task_id) end
if r.checks > 0 then redis.call('DEL', KEYS[5]) end
if r.lost > 0 then redis.call('DEL', KEYS[6]) end
local marker
if r.life == 1 and r.id == '' and r.fp == '' then
  if r.field ~= '' and #outcome > INLINE then
    redis.call('SET', KEYS[4], string.sub(outcome, 2), 'PX', ttl)
    outcome = '@'
  end
  marker = 'D' .. outcome
else
  local uuid = uuid_bytes(r.id)
  marker = (uuid and 'u' or 'd') .. string.char(math.min(r.life, 255)) .. r.fp .. string.rep('\0', 8 - #r.fp)
    .. (uuid or string.char(#r.id) .. r.id) .. outcome
end
put(r, marker, ttl)
return held and 'ok' or 'lost_writes'
