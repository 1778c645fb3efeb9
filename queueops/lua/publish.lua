--[[
publish: write a queue's settings, unless newer ones are here; wakes who waits for a resume or a
wider limit.

FLAGS allow-oom
KEYS
  settings  HASH  see lib/settings.lua, and paused_reason, policy, epoch
ARGV
  now_ms     string   '' for the server's clock
  version    integer  of these settings; an equal one is written again
  pairs...   list     field, value; '' removes the field
RETURNS
  'ok', or 'newer' when a higher version is here
]]
-- @include clock
-- @include wake

local here = redis.call('HGET', settings, 'version')
version = assert(tonumber(version))
if here and tonumber(here) > version then return 'newer' end
for i = REST + 1, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    redis.call('HDEL', settings, ARGV[i])
  else
    redis.call('HSET', settings, ARGV[i], ARGV[i + 1])
  end
end
redis.call('HSET', settings, 'version', version)
push_token()
return 'ok'
