--[[
renew: register children, or renew their leases; one write a child, whatever it holds. A token
that nobody answered for a second is pushed again.

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
local token_at = tonumber(redis.call('HGET', clock, 'token_at') or '')
if token_at and NOW - token_at > 1000 then push_token() end
return { CONF.version, NOW_US }
