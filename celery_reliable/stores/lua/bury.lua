#!lua flags=allow-oom
-- Make the key dead and keep its letter.
-- KEYS  record, string of its own, ledger, letters, order, stats, checkpoint, evidence
-- ARGV  field, fence, token, task id, letter id, letter, letter ttl ms, letter max
-- Answer {ok | lost_writes | stale, how many old letters had to go}
-- Atomic because a dead key without letter is a lost job, and a letter without dead key runs twice.
local fence, token, id, ttl = ARGV[2], ARGV[3], ARGV[5], tonumber(ARGV[7])
local us = clock()
local r = load(KEYS[1], KEYS[2], ARGV[1])
if r and r.st == 'X' and r.token == id then return { 'ok', 0 } end
local held = r and r.st == 'R' and r.token == token and int(r.fence) == fence
if not held and not proves_lost_writes(r, fence) then return { 'stale', 0 } end
local trimmed = keep_letter(KEYS[4], KEYS[5], KEYS[6], id, ARGV[6], ttl, tonumber(ARGV[8]), us)
redis.call('HDEL', KEYS[3], ARGV[4])
if r.checks > 0 then redis.call('PEXPIRE', KEYS[7], ttl) end
if r.lost > 0 then redis.call('DEL', KEYS[8]) end
settle_down(r, KEYS[2])
r.st, r.token, r.at, r.marks = 'X', id, r.life, ''
store(r, ttl)
return { held and 'ok' or 'lost_writes', trimmed }
