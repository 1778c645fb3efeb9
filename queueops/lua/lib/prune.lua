--[[
prune: up to `limit` discarded jobs whose keep time is over are gone. Answers how many.
]]
-- @include purge
local function prune(limit)
  local over = redis.call('ZRANGEBYSCORE', discarded, '-inf', NOW, 'LIMIT', 0, limit)
  for _, id in ipairs(over) do
    local h = load(id)
    if not h or purge(h, 'queueops', 'keep time over', 'prune') ~= 'ok' then
      redis.call('ZREM', discarded, id) -- a stale id: its hash, if any, names the truth
    end
  end
  return #over
end
