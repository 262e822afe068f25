#!lua flags=allow-oom
-- Keep a letter that has no claim. Twice is once.
-- KEYS  letters, order, stats
-- ARGV  letter id, letter, letter ttl ms, letter max
-- Answer how many old letters had to go
-- Atomic because the letter, its place in the order and the bounds belong together.
local us = clock()
return keep_letter(KEYS[1], KEYS[2], KEYS[3], ARGV[1], ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), us)
