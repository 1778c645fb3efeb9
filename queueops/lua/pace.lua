--[[
pace: the turn of a job whose task has a rate limit. Not a queue's: its one key, a HASH, is given.

`next` is the first free turn, `turn:<id>` one that is kept for a job, both in µs of Unix time. A turn
that was given away is not taken twice: each job that waits knows its own, and none is asked again before.
A lost answer costs a turn: the job is later by one, never too early, and no job's state is touched here.

FLAGS allow-oom single-key
ARGV
  now_ms       string   '' for the server's clock
  id           string   the job
  interval_us  integer  between two starts
RETURNS
  0 when it may run now, else the µs until its turn
]]
-- @include clock

interval_us = assert(tonumber(interval_us), 'pace: an interval in µs')
local mine = 'turn:' .. id
local turn = tonumber(redis.call('HGET', KEYS[1], mine) or nil)
if turn and turn <= NOW_US then
  redis.call('HDEL', KEYS[1], mine)
  return 0
elseif turn then
  return turn - NOW_US
end
turn = math.max(NOW_US, tonumber(redis.call('HGET', KEYS[1], 'next') or nil) or 0)
redis.call('HSET', KEYS[1], 'next', string.format('%d', turn + interval_us))
if turn > NOW_US then redis.call('HSET', KEYS[1], mine, string.format('%d', turn)) end
-- A day after its last turn nobody waits for one: what discarded jobs left is forgotten.
redis.call('PEXPIRE', KEYS[1], math.ceil((turn - NOW_US + interval_us) / 1000) + 86400000)
return turn > NOW_US and turn - NOW_US or 0
