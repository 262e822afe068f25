#!lua flags=allow-oom
-- Extend leases and beat the fleet's pulse.
-- KEYS  pulse, then record and string of its own for each claim
-- ARGV  pulse ttl ms, then field, token, ttl ms, record ttl ms for each claim
-- Answer the positions (from 1) of the lost ones
-- Atomic because an extension must not revive a lease that another claim took.
local _, ms = clock()
local pulse = tonumber(ARGV[1])
local last, gap, began = heard(KEYS[1])
if ms - last > pulse / 2 then gap, began = ms + pulse, ms end
redis.call('SET', KEYS[1], int(ms) .. '|' .. int(gap) .. '|' .. int(began))
local lost = {}
for i = 1, (#KEYS - 1) / 2 do
  local field, token, ttl, record_ttl = ARGV[4 * i - 2], ARGV[4 * i - 1], tonumber(ARGV[4 * i]), ARGV[4 * i + 1]
  local r = load(KEYS[2 * i], KEYS[2 * i + 1], field)
  if r and r.st == 'R' and r.token == token and not marked(r, 'f') then
    r.at = ms + ttl
    store(r, record_ttl)
  else
    lost[#lost + 1] = i
  end
end
return lost
