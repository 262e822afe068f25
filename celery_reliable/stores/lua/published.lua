#!lua flags=allow-oom
-- Note that the broker confirmed the publish of a waiting job.
-- KEYS  record, string of its own
-- ARGV  field, task id
-- Answer 1
-- Atomic because the record may move on between the look and the mark.
local r = load(KEYS[1], KEYS[2], ARGV[1])
if r and r.st == 'W' and r.id == ARGV[2] and not marked(r, 'p') then
  r.marks = 'p' .. r.marks
  store(r, redis.call('PTTL', r.key))
end
return 1
