--[[
renew: register children, or renew their leases; one write a child, whatever it holds. A token
that nobody answered for a second is pushed again; so is one for an alarm a second past, whose keeper
is gone with its whole tree.

FLAGS allow-oom
KEYS
  children      ZSET    child -> end of its lease, Unix ms
ARGV
  now_ms       string   '' for the server's clock
  children...  list     child ids
RETURNS
  'fresh', or the settings version and the server's time in µs
]]
-- @include clock
-- @include settings
-- @include types
-- @include wake

if not open() then return 'fresh' end
local wrong = wrong_type(children, 'zset', clock, 'hash', wake, 'list')
if wrong then return wrong end
for i = REST + 1, #ARGV do redis.call('ZADD', children, NOW + CONF.lease_ms, ARGV[i]) end
local c = redis.call('HMGET', clock, 'token_at', 'alarm')
if (c[1] and NOW - c[1] > 1000) or (c[2] and NOW - c[2] > 1000) then push_token() end
return { CONF.version, NOW_US }
