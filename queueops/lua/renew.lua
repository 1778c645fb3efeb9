--[[
renew: register children, or renew their leases; one write a child, whatever it holds. A token
that nobody answered for a second is pushed again; so is one for an alarm a second past, whose keeper
is gone with its whole tree; and one for the probation children while there are suspects, since theirs
may have gone with a tree, too.

FLAGS allow-oom
KEYS
  children      ZSET    child -> end of its lease, Unix ms
  ready_prefix  string  a lane's STREAM less its lane
  wake_suspect  LIST    at most one token, for the probation children
ARGV
  now_ms       string   '' for the server's clock
  children...  list     child ids
RETURNS
  'fresh', or the settings version and the server's time in µs
]]
-- @include clock
-- @include settings
-- @include wake

if not open() then return 'fresh' end
-- A worker that has nothing to do sends this and little else: one write for all, and no look at types,
-- since the first write refuses a wrong one.
for first = REST + 1, #ARGV, 1000 do
  local renewed = {}
  for i = first, math.min(first + 999, #ARGV) do
    renewed[#renewed + 1] = NOW + CONF.lease_ms
    renewed[#renewed + 1] = ARGV[i]
  end
  redis.call('ZADD', children, unpack(renewed))
end
local c = redis.pcall('HMGET', clock, 'token_at', 'alarm')
if (c[1] and NOW - c[1] > 1000) or (c[2] and NOW - c[2] > 1000) then push_token() end
if redis.pcall('XLEN', ready_prefix .. LANE.SUSPECT) ~= 0 and redis.pcall('LLEN', wake_suspect) == 0 then
  redis.pcall('RPUSH', wake_suspect, '1')
end
return { CONF.version, NOW_US }
