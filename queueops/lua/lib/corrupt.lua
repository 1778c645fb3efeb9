--[[
corrupt: an id whose job can't be read never stops a worker: it becomes a dead job that says why.

What stood under its key with a wrong type is set aside, not overwritten.

KEYS
  corrupt_prefix  string  where such a key is renamed to, less its id
]]
-- @include bury
local function bury_corrupt(id, why, from)
  local key = job_prefix .. id
  if redis.call('EXISTS', key) == 1 and redis.call('TYPE', key)['ok'] ~= 'hash' then
    redis.call('RENAME', key, corrupt_prefix .. id)
    why = why .. '; what stood there is kept as ' .. corrupt_prefix .. id
  end
  redis.call('ZREM', delayed, id)
  redis.call('ZREM', pending, id)
  local h = { id = id, key = key, state = from }
  bury(h, 'queueops', 0, 'corrupt', 'corrupt: the stored job can\'t be read', why)
end
