-- Shared by every verb. A record is one short text, so that people can read it in redis-cli:
--   st|life|fence|attempts|lost|snoozes|checks|at|token|marks|fp|id
-- st      W waiting, R running, X dead, O over;  D, u and d are done markers, see complete.lua
-- lost    claims that ended without a verdict
-- at      R: end of the lease; W: due time; milliseconds of the server's clock.  X: highest life given out.
--         O: stamp of the submission that was withdrawn
-- token   R: the claim's token; X: the letter's id; O: why it is over; W: letter of the dead life before this one
-- marks   r revoked while running, f lease freed, x may only bury, e newer arguments in the ledger, p publish confirmed,
--         t<seconds>x<n> last publish by a producer and how many, l<life> the dead life before this one,
--         j another submission counts on it, d<milliseconds> no replacement puts it off beyond that
-- id      with mark l: then a newline, and the id of the dead life
-- A record lies in a string of its own, or (first run of an `own` key) in a field of an hourly bucket hash. `>` in the
-- bucket means: look into the string. Long-lived states are moved there, so a bucket holds young records only.
local ENDED = { X = true, O = true }

local function clock()
  local t = redis.call('TIME')
  local us = t[1] * 1000000 + t[2]
  return us, math.floor(us / 1000)
end

local function int(n) return string.format('%.0f', n) end

local function uuid_text(raw)
  local hex = string.gsub(raw, '.', function(c) return string.format('%02x', string.byte(c)) end)
  return string.gsub(hex, '(%x%x%x%x%x%x%x%x)(%x%x%x%x)(%x%x%x%x)(%x%x%x%x)(%x+)', '%1-%2-%3-%4-%5')
end

-- The 16 bytes of an id that is a UUID as `uuid_text` writes it; nil of any other.
local function uuid_bytes(id)
  local hex = string.gsub(id, '-', '')
  if #hex ~= 32 or not string.match(hex, '^[0-9a-f]+$') then return nil end
  local raw = string.gsub(hex, '..', function(h) return string.char(tonumber(h, 16)) end)
  return uuid_text(raw) == id and raw or nil
end

local function parse_marker(raw, id, outcome)
  return { st = 'D', life = string.byte(raw, 2), fp = (string.gsub(string.sub(raw, 3, 10), '%z', '')), id = id,
           outcome = string.sub(raw, outcome) }
end

local function parse(raw)
  local st = string.sub(raw, 1, 1)
  if st == 'D' then return { st = 'D', life = 1, fp = '', id = '', outcome = string.sub(raw, 2) } end
  if st == 'u' then return parse_marker(raw, (uuid_text(string.sub(raw, 11, 26))), 27) end
  if st == 'd' then
    local last = 11 + string.byte(raw, 11)
    return parse_marker(raw, string.sub(raw, 12, last), last + 1)
  end
  local _, life, fence, attempts, lost, snoozes, checks, at, token, marks, fp, id = string.match(raw,
    '^(.)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|([^|]*)|(.*)$')
  local was
  if string.find(marks, 'l', 1, true) and string.find(id, '\n', 1, true) then
    id, was = string.match(id, '^(.*)\n(.*)$')
  end
  return { st = st, was = was, life = tonumber(life) or 1, fence = tonumber(fence) or 0, attempts = tonumber(attempts) or 0,
           lost = tonumber(lost) or 0, snoozes = tonumber(snoozes) or 0, checks = tonumber(checks) or 0,
           at = tonumber(at) or 0, token = token, marks = marks, fp = fp, id = id }
end

local function load(key, alt, field)
  local raw, r
  if field ~= '' then raw = redis.call('HGET', key, field) end
  if raw and raw ~= '>' then
    r = parse(raw)
    r.key, r.field = key, field
    return r
  end
  raw = redis.call('GET', alt)
  if not raw then return nil end
  r = parse(raw)
  r.key, r.field = alt, ''
  return r
end

local function fresh(key, field, life)
  return { st = 'W', life = life, fence = 0, attempts = 0, lost = 0, snoozes = 0, checks = 0, at = 0, token = '',
           marks = '', fp = '', id = '', key = key, field = field }
end

-- Move a record out of its bucket for good.
local function settle_down(r, alt)
  if r.field ~= '' then redis.call('HSET', r.key, r.field, '>') end
  r.key, r.field = alt, ''
end

local function nonzero(n) return n == 0 and '' or int(n) end

local function text(r)
  local id = r.was and string.find(r.marks, 'l', 1, true) and r.id .. '\n' .. r.was or r.id
  return table.concat({ r.st, int(r.life), nonzero(r.fence), nonzero(r.attempts), nonzero(r.lost), nonzero(r.snoozes),
    nonzero(r.checks), nonzero(r.at), r.token, r.marks, r.fp, id }, '|')
end

local function put(r, raw, ttl)
  if r.field == '' then
    redis.call('SET', r.key, raw, 'PX', ttl)
    return
  end
  redis.call('HSET', r.key, r.field, raw)
  -- An eighth more than asked for, so that the next records of this bucket mostly need no PEXPIRE.
  if redis.call('PTTL', r.key) < tonumber(ttl) then redis.call('PEXPIRE', r.key, math.floor(ttl * 1.125)) end
end

-- A live record in a bucket needs the bucket's own life only: renewals touch it.
local function store(r, ttl) put(r, text(r), r.field ~= '' and math.min(ttl, 3600000) or ttl) end

-- The fleet's pulse in ms: its last beat, and when the latest grace ends and began.
local function heard(pulse)
  local last, gap, began = string.match(redis.call('GET', pulse) or '', '^(%d+)|(%d+)|(%d+)$')
  return tonumber(last) or 0, tonumber(gap) or 0, tonumber(began) or 0
end

local function over(r, alt, state, ttl, checkpoint)
  if r.checks > 0 then redis.call('DEL', checkpoint) end
  settle_down(r, alt)
  r.st, r.token, r.at, r.marks, r.checks = 'O', state, 0, '', 0
  store(r, ttl)
end

local function marked(r, mark) return string.find(r.marks or '', mark, 1, true) end

-- An entry of the ledger: 0x01 times moment, if it was published again (see resend.lua); 0x02 length and envelope, if newer
-- arguments are to be handed out; the envelope it began with.
local function split_entry(entry)
  local resent, rest = string.match(entry or '', '^(\1%d+ %d+\n)(.*)$')
  rest = rest or entry or ''
  local head, length = string.match(rest, '^(\2(%d+)\n)')
  if not head then return resent or '', nil, rest end
  local first = #head + tonumber(length) + 1
  return resent or '', string.sub(rest, #head + 1, first - 1), string.sub(rest, first)
end

local function entry_with(entry, newer)
  local resent, _, first = split_entry(entry)
  return resent .. '\2' .. #newer .. '\n' .. newer .. first
end

local function next_life(r) return (r.st == 'X' and math.max(r.life, r.at) or r.life) + 1 end

local function holds(r, fence, token)
  return r and r.st == 'R' and r.token == token and int(r.fence) == fence and not string.find(r.marks, 'x', 1, true)
end

-- A fence above the record's proves that the store lost writes in a fail-over: the holder is the newer one.
local function proves_lost_writes(r, fence)
  return r and (r.st == 'R' or r.st == 'W') and tonumber(fence) > r.fence
end

-- A letter is `d`, the 8 characters of its label's number and its body, or, once replayed, `r`, the number, the new id, a
-- line's end and the body. `b` has the keys: letters, order, stats, labels, index. The index has a member for each letter,
-- number .. microseconds (16 digits) .. id, so that letters of a label lie together, in their order. Labels: text -> number.
local MOST_LABELS = 1000
local UNLABELLED = '00000000'
local LAST_NUMBER = '\0'

local function number_of(labels, label)
  if label == '' then return UNLABELLED end
  local number = redis.call('HGET', labels, label)
  if number then return number end
  if redis.call('HLEN', labels) > MOST_LABELS then return UNLABELLED end
  number = string.format('%08x', redis.call('HINCRBY', labels, LAST_NUMBER, 1))
  redis.call('HSET', labels, label, number)
  return number
end

local function place_in_index(number, us, id) return number .. string.format('%016.0f', us) .. id end

-- Takes a letter out of its label; the label goes with the last one.
local function unlabel(b, id, raw)
  local number = string.sub(raw, 2, 9)
  redis.call('ZREM', b.index, place_in_index(number, redis.call('ZSCORE', b.order, id), id))
  if number == UNLABELLED or #redis.call('ZRANGEBYLEX', b.index, '[' .. number, '(' .. number .. ':', 'LIMIT', 0, 1) > 0 then return end
  local all = redis.call('HGETALL', b.labels)
  for i = 1, #all, 2 do
    if all[i + 1] == number and all[i] ~= LAST_NUMBER then redis.call('HDEL', b.labels, all[i]) end
  end
end

local function boxes(first) return { letters = KEYS[first], order = KEYS[first + 1], stats = KEYS[first + 2],
                                     labels = KEYS[first + 3], index = KEYS[first + 4] } end

-- Answers how many old letters had to go.
local function keep_letter(b, id, body, label, ttl, max, us)
  if redis.call('HEXISTS', b.letters, id) == 1 then return 0 end
  local number = number_of(b.labels, label)
  redis.call('HSET', b.letters, id, 'd' .. number .. body)
  redis.call('ZADD', b.order, us, id)
  redis.call('ZADD', b.index, 0, place_in_index(number, us, id))
  redis.call('HINCRBY', b.stats, 'buried', 1)
  local old = redis.call('ZRANGEBYSCORE', b.order, '-inf', us - ttl * 1000, 'LIMIT', 0, 100)
  local excess = redis.call('ZCARD', b.order) - #old - max
  if excess > 0 then
    for _, member in ipairs(redis.call('ZRANGE', b.order, #old, #old + math.min(excess, 100) - 1)) do old[#old + 1] = member end
  end
  if #old > 0 then
    for i, raw in ipairs(redis.call('HMGET', b.letters, unpack(old))) do
      if raw then unlabel(b, old[i], raw) end
    end
    redis.call('HDEL', b.letters, unpack(old))
    redis.call('ZREM', b.order, unpack(old))
    redis.call('HINCRBY', b.stats, 'trimmed', #old)
  end
  return #old
end

-- The field of a shelf in which the highest version given out lies; no note is named so.
local LAST_VERSION = ''

-- Answers version and value of a note; 0 and '' when there is none or its time is over.
local function note(shelf, ends, name, ms)
  local raw = redis.call('HGET', shelf, name)
  local till = raw and redis.call('ZSCORE', ends, name)
  if not till or tonumber(till) <= ms then return 0, '' end
  local bar = string.find(raw, '|', 1, true)
  return tonumber(string.sub(raw, 1, bar - 1)), string.sub(raw, bar + 1)
end
