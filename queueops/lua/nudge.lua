--[[
nudge: the keeper is stuck or gone: take the clock from it and wake others. Two tokens, since the
stuck one may swallow the first.

FLAGS allow-oom
KEYS
  wake   LIST  tokens
  clock  HASH  keeper, alarm, token_at
ARGV
  now_ms  string  '' for the server's clock
  child   string  who is stuck; nothing happens when it is not the keeper
RETURNS
  1 when the clock was taken from it, else 0
]]
-- @include clock

if redis.call('HGET', clock, 'keeper') ~= child then return 0 end
redis.call('HDEL', clock, 'keeper', 'alarm')
redis.call('DEL', wake)
redis.call('RPUSH', wake, '1', '1')
redis.call('HSET', clock, 'token_at', NOW)
return 1
