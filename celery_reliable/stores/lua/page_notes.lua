#!lua flags=no-writes
-- Read a part of a shelf.
-- KEYS  shelf, order of ends
-- ARGV  cursor, about how many
-- Answer the next cursor ('0' at the end), then name, version, value of each note
-- Atomic because a note and its end belong together.
local _, ms = clock()
local found = {}
local cursor, flat = unpack(redis.call('HSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2]))
for at = 1, #flat, 2 do
  local version, value = note(KEYS[1], KEYS[2], flat[at], ms)
  if version > 0 and flat[at] ~= LAST_VERSION then
    found[#found + 1], found[#found + 2], found[#found + 3] = flat[at], version, value
  end
end
return { cursor, found }
