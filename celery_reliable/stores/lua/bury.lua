#!lua flags=allow-oom
-- Make the key dead and keep its letter.
-- KEYS  record, string of its own, ledger, checkpoint, evidence, letters, order, stats, labels, index
-- ARGV  field, fence, token, task id, letter id, letter, label, letter ttl ms, letter max
-- Answer {ok | lost_writes | stale, how many old letters had to go}
-- Atomic because a dead key without letter is a lost job, and a letter without dead key runs twice.
local fence, token, id, ttl = ARGV[2], ARGV[3], ARGV[5], tonumber(ARGV[8])
local us = clock()
local r = load(KEYS[1], KEYS[2], ARGV[1])
if r and r.st == 'X' and r.token == id then return { 'ok', 0 } end
local held = r and r.st == 'R' and r.token == token and int(r.fence) == fence
if not held and not proves_lost_writes(r, fence) then return { 'stale', 0 } end
local trimmed = keep_letter(boxes(6), id, ARGV[6], ARGV[7], ttl, tonumber(ARGV[9]), us)
redis.call('HDEL', KEYS[3], ARGV[4])
if r.checks > 0 then redis.call('PEXPIRE', KEYS[4], ttl) end
if r.lost > 0 then redis.call('DEL', KEYS[5]) end
settle_down(r, KEYS[2])
r.st, r.token, r.at, r.marks = 'X', id, r.life, ''
store(r, ttl)
return { held and 'ok' or 'lost_writes', trimmed }
