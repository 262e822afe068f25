-- Accept a submission of a declared key.
-- KEYS  record, string of its own, ledger
-- ARGV  field, task id, fingerprint, envelope or '', canvas 0|1, replace 0|1, ttl ms; with replace: swept 0|1, and if the
--       job is delayed: delay ms, longest delay ms
-- Answer {new, life} | {existing, id, state, publish, life, outcome, replaced 0|1} | {mismatch, id}
-- Atomic because two submitters of one key must not both begin a life.
local field, task_id, fp, envelope = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local canvas, replace, ttl = ARGV[5] == '1', ARGV[6] == '1', ARGV[7]
local swept, delay = ARGV[8] ~= '0', tonumber(ARGV[9])

-- What nearly every submission meets: nothing.
if field == '' and not delay then
  local record = 'W|1||||||||t' .. redis.call('TIME')[1] .. 'x0|' .. fp .. '|' .. task_id
  if redis.call('SET', KEYS[2], record, 'PX', ttl, 'NX') then
    if envelope ~= '' then redis.call('HSET', KEYS[3], task_id, envelope) end
    return { 'new', 1 }
  end
end
-- common.lua

local us, ms = clock()
local r = load(KEYS[1], KEYS[2], field)

local function enter(id)
  if envelope ~= '' then redis.call('HSET', KEYS[3], id, envelope) end
end

if not r or (ENDED[r.st] and (r.id ~= task_id or r.token == 'withdrawn')) then
  local n = fresh(KEYS[1], field, 1)
  n.fp, n.id = fp, task_id
  n.marks = 't' .. int(ms / 1000) .. 'x0'
  if r then
    n.life, n.fence, n.checks = next_life(r), r.fence, r.checks
    if r.st == 'X' then n.token, n.marks, n.was = r.token, n.marks .. 'l' .. int(r.life), r.id end
  end
  if delay then n.at, n.marks = ms + delay, n.marks .. 'd' .. int(ms + ARGV[10]) end
  store(n, ttl)
  enter(task_id)
  return { 'new', n.life }
end

local names = { W = 'waiting', R = 'running', D = 'done', X = 'dead', O = 'over' }
local state = names[r.st]
if state == 'over' and r.token == 'revoked' then state = 'revoked' end
local live = r.st == 'R' and r.at > ms

local function existing(publish, life, replaced)
  return { 'existing', r.id, state, publish, life or r.life, r.outcome or '', replaced or 0 }
end

if r.id == task_id then
  if live or r.st == 'D' or ENDED[r.st] then return existing('no') end
  if not marked(r, 'e') then enter(task_id) end
  return existing('same')
end
local unclaimed = r.st == 'W' and marked(r, 't')
if fp ~= '' and r.fp ~= '' and fp ~= r.fp and not replace then return { 'mismatch', r.id } end
if marked(r, 'r') then
  enter(task_id)
  return existing('own', r.life + 1)
end
if unclaimed and not canvas and not marked(r, 'j') then
  r.marks = 'j' .. r.marks
  store(r, ttl)
end
if replace and unclaimed then
  r.fp = fp
  if not marked(r, 'e') then r.marks = 'e' .. r.marks end
  if delay then r.at = math.min(ms + delay, tonumber(string.match(r.marks, 'd(%d+)')) or 0) end
  store(r, ttl)
  redis.call('HSET', KEYS[3], r.id, entry_with(redis.call('HGET', KEYS[3], r.id), envelope))
end
local replaced = replace and unclaimed and 1 or 0
if canvas then
  enter(task_id)
  return existing('own', nil, replaced)
end
if r.st == 'D' or swept and redis.call('HEXISTS', KEYS[3], r.id) == 1 then return existing('no', nil, replaced) end
local last, times = string.match(r.marks, 't(%d+)x(%d+)')
local silent = last and r.at <= ms and ms / 1000 - last > 600 * 2 ^ times
local confirmed = marked(r, 'p')
if (unclaimed and not confirmed) or (r.st == 'R' and not live) or silent then
  r.marks = string.gsub(r.marks, 't%d+x%d+', '') .. 't' .. int(ms / 1000) .. 'x' .. int((times or 0) + 1)
  store(r, ttl)
  return existing('same', nil, replaced)
end
return existing('no', nil, replaced)
