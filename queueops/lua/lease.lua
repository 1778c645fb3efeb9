--[[
lease: take, keep or give up a single-runner lease. Not a queue's: its one key is given.

FLAGS allow-oom single-key
ARGV
  holder  string   who wants it
  ttl_ms  integer  for how long; 0 gives it up
RETURNS
  the term (the server's time in µs when it was taken: it only grows), 0 when another holds it
]]
local value = redis.call('GET', KEYS[1])
local owner, term = string.match(value or '', '^(.*) (%d+)$')
if ttl_ms == '0' then
  if owner == holder then redis.call('DEL', KEYS[1]) end
  return 0
end
if owner == holder then
  redis.call('PEXPIRE', KEYS[1], ttl_ms)
  return tonumber(term)
end
if value then
  -- A holder that crashed between two commands of an older version, or a hand, left it without a TTL.
  if redis.call('PTTL', KEYS[1]) < 0 then redis.call('PEXPIRE', KEYS[1], ttl_ms) end
  return 0
end
local time = redis.call('TIME')
term = string.format('%d', time[1] * 1000000 + time[2])
redis.call('SET', KEYS[1], holder .. ' ' .. term, 'PX', ttl_ms)
return tonumber(term)
