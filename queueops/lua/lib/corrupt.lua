--[[
corrupt: an id whose job can't be read never stops a worker: it becomes a dead job that says why.

What stood under its key with a wrong type is set aside, not overwritten. What can't be an id at all
(bytes added by hand) is kept as the spec of a job with an id of its own.

KEYS
  corrupt_prefix  string  where such a key is renamed to, less its id
]]
-- @include bury
local function bury_corrupt(id, why, from)
  redis.call('ZREM', delayed, id)
  redis.call('ZREM', pending, id)
  if #id > 128 or not string.find(id, '^%w[%w._:@-]*$') then
    local raw = id
    id = 'corrupt-' .. redis.sha1hex(raw)
    if redis.call('HSET', job_prefix .. id, 'spec', raw) == 0 then return end -- the same bytes again
    why = 'no job can have this id: its bytes are kept as the spec'
  end
  local key = job_prefix .. id
  if redis.call('EXISTS', key) == 1 and redis.call('TYPE', key)['ok'] ~= 'hash' then
    redis.call('RENAME', key, corrupt_prefix .. id)
    why = why .. '; what stood there is kept as ' .. corrupt_prefix .. id
  end
  local h = { id = id, key = key, state = from }
  bury(h, 'queueops', 0, 'corrupt', 'corrupt: the stored job can\'t be read', why)
end
