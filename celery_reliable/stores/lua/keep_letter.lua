#!lua flags=allow-oom
-- Keep a letter that has no claim. Twice is once.
-- KEYS  letters, order, stats, labels, index
-- ARGV  letter id, letter, label, letter ttl ms, letter max
-- Answer how many old letters had to go
-- Atomic because the letter, its places in order and index, and the bounds belong together.
local us = clock()
return keep_letter(boxes(1), ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5]), us)
