--[[
now: the server's clock, as every script reads it. Not a queue's: any one key is given.

FLAGS single-key
ARGV
  now_ms  string  '' for the server's clock (tests: '+N', '-N', 'N')
RETURNS
  Unix ms by the scripts' clock, and µs of the server's own, which stream ids are made of
]]
-- @include clock
local time = redis.call('TIME')
return { NOW, time[1] * 1000000 + time[2] }
