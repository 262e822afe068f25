#!lua flags=allow-oom
-- Ask for the right to run.
-- KEYS  record, string of its own, ledger, pulse, checkpoint, letters, outcome, evidence
-- ARGV  field, task id, life of the message, fingerprint, token, ttl ms, max deliveries, record ttl ms, late after ms,
--       stamp us, id kept in the record or ''
-- Answer {run, fence, life, attempt, delivery, snoozes, checks, envelope, saved...} | {done, id, outcome}
--      | {dead, letter id, letter} | {busy, ms} | {notyet, ms} | {poisoned, fence, life, attempt, delivery, evidence...}
--      | {mismatch, id} | {over, state}
-- Atomic because of all the claims of one key exactly one may win.
local field, task_id, life, fp, token = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4], ARGV[5]
local ttl, max, record_ttl, late_after, stamp = tonumber(ARGV[6]), tonumber(ARGV[7]), ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10])
-- common.lua

local us, ms = clock()
local r = load(KEYS[1], KEYS[2], field)

local function new_life(number)
  local n = fresh(KEYS[1], field, number)
  if r then
    settle_down(n, KEYS[2])
    n.fence, n.checks = r.fence, r.checks
  end
  n.id, n.fp = ARGV[11], fp
  return n
end

-- A withdrawn id that was submitted again: by its ledger entry, or by another stamp than the withdrawn message had.
local function tried_again()
  return r.token == 'withdrawn' and (stamp ~= r.at or redis.call('HEXISTS', KEYS[3], task_id) == 1)
end

-- How long nobody's lease ends because the fleet's renewals were away, 0 for not at all.
local function grace()
  local last, gap, began = heard(KEYS[4])
  if ms < gap then return gap - ms end
  -- A grace that began before the last beat was not for the present silence.
  if ms - last > ttl / 2 and began <= last then
    redis.call('SET', KEYS[4], int(last) .. '|' .. int(ms + ttl) .. '|' .. int(ms))
    return ttl
  end
  return 0
end

if not r then
  if late_after > 0 and stamp > 0 and us - stamp > late_after * 1000 and redis.call('HEXISTS', KEYS[3], task_id) == 0 then
    return { 'over', 'late' }
  end
  r = new_life(math.max(life, 1))
end
if life > 0 and life < r.life then return { 'over', 'ended' } end
local other = life == 0 and r.id ~= '' and r.id ~= task_id
if r.st == 'X' and not other then return { 'dead', r.token, redis.call('HGET', KEYS[6], r.token) or '' } end
if r.st == 'O' and not other and life <= r.life and not tried_again() then return { 'over', r.token } end
if ENDED[r.st] then r = new_life(math.max(life, next_life(r))) end
local replaced = marked(r, 'e')
if fp ~= '' and r.fp ~= '' and fp ~= r.fp and task_id ~= r.id and not replaced then return { 'mismatch', r.id } end
if r.st == 'D' then
  local outcome = r.outcome
  if outcome == '@' then outcome = '=' .. (redis.call('GET', KEYS[7]) or '') end
  return { 'done', r.id, string.sub(outcome, 2) }
end
if r.st == 'W' and r.at > ms then return { 'notyet', int(r.at - ms) } end
if r.st == 'R' then
  if r.at > ms then return { 'busy', int(r.at - ms) } end
  local wait = marked(r, 'f') and 0 or grace()
  if wait > 0 then return { 'busy', int(wait) } end
  if marked(r, 'r') then
    redis.call('HDEL', KEYS[3], r.id == '' and task_id or r.id)
    over(r, KEYS[2], 'revoked', record_ttl, KEYS[5])
    if life <= r.life then return { 'over', 'revoked' } end
    r = new_life(life)
  else
    r.lost = r.lost + 1
  end
end
if life > r.life then r.life = life end
local poisoned = r.lost >= max
r.st, r.token, r.at, r.fence = 'R', token, ms + ttl, math.max(r.fence + 1, us)
r.marks = (replaced and 'e' or '') .. (poisoned and 'x' or '')
store(r, record_ttl)
if poisoned then
  local answer = { 'poisoned', int(r.fence), r.life, r.attempts + 1, r.lost }
  for _, one in ipairs(redis.call('LRANGE', KEYS[8], -20, -1)) do answer[#answer + 1] = one end
  return answer
end
local envelope = ''
if replaced then
  local _, newer, first = split_entry(redis.call('HGET', KEYS[3], r.id))
  envelope = newer or first
end
local answer = { 'run', int(r.fence), r.life, r.attempts + 1, r.lost + 1, r.snoozes, r.checks, envelope }
if r.checks > 0 then
  for _, one in ipairs(redis.call('HGETALL', KEYS[5])) do answer[#answer + 1] = one end
end
return answer
