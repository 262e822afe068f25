#!lua flags=no-writes
-- Read some notes of a shelf.
-- KEYS  shelf, order of ends
-- ARGV  names
-- Answer version, value for each name; 0, '' where there is none or its time is over
-- Atomic because a note and its end belong together.
local _, ms = clock()
local found = {}
for at, name in ipairs(ARGV) do
  local version, value = note(KEYS[1], KEYS[2], name, ms)
  found[2 * at - 1], found[2 * at] = version, value
end
return found
