#!lua flags=no-writes
-- Find the newest letters of some labels.
-- KEYS  letters, index
-- ARGV  how many at most, below which place (microseconds .. id), numbers of the labels...
-- Answer {place, letter id, letter, place, letter id, letter, ...}, newest first
-- Atomic because a letter that changes its label between two reads would be seen twice, or not at all.
local most, below = tonumber(ARGV[1]), ARGV[2]
local PLACE = 9

local function fill(head)
  head.rows = redis.call('ZREVRANGEBYLEX', KEYS[2], '(' .. head.number .. head.below, '[' .. head.number, 'LIMIT', 0, head.size)
  head.at, head.size = 0, math.min(most, 64)
  return head
end

local function forward(head)
  head.at = head.at + 1
  if head.at > #head.rows and #head.rows > 0 then
    head.below = head.place
    fill(head).at = 1
  end
  head.place = head.rows[head.at] and string.sub(head.rows[head.at], PLACE)
  return head.place
end

local heads = {}
for i = 3, #ARGV do
  local head = fill({ number = ARGV[i], below = below, size = 2 })
  if forward(head) then heads[#heads + 1] = head end
end
-- Of more labels than letters are wanted only those with the newest letters can have one of them.
table.sort(heads, function(one, other) return one.place > other.place end)
for i = #heads, most + 1, -1 do heads[i] = nil end

local ids, found = {}, {}
while #ids < most and #heads > 0 do
  local newest = 1
  for i = 2, #heads do
    if heads[i].place > heads[newest].place then newest = i end
  end
  local place = heads[newest].place
  ids[#ids + 1] = string.sub(place, 17)
  found[#found + 1] = place
  if not forward(heads[newest]) then table.remove(heads, newest) end
end
local answer = {}
for i, letter in ipairs(#ids > 0 and redis.call('HMGET', KEYS[1], unpack(ids)) or {}) do
  answer[#answer + 1] = found[i]
  answer[#answer + 1] = ids[i]
  answer[#answer + 1] = letter
end
return answer
