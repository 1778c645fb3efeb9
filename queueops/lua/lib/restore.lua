--[[
restore: a discarded job goes back to the state it had.
]]
-- @include job
-- @include record
-- @include wake
local function restore(h, actor, reason)
  if h.state ~= STATE.DISCARDED then return 'wrong:' .. h.state end
  local v = redis.call('HMGET', h.key, 'was', 'was_at', 'expires')
  local to, at = v[1] or STATE.DEAD, tonumber(v[2]) or NOW
  if is_live(to) and h.unique then
    local holder = unique_holder(h.unique, h.id)
    if holder then return 'held:' .. holder end
    redis.call('SET', unique_prefix .. h.unique, h.id)
  end
  leave(h)
  redis.call('HDEL', h.key, 'was', 'was_at', 'reason', 'child')
  if v[3] and tonumber(v[3]) <= NOW then redis.call('HDEL', h.key, 'expires') end -- a person wants it
  if to == STATE.DEAD then
    local cause = h.cause or note_cause('other', 'other causes')
    redis.call('ZADD', dead, at, h.id)
    redis.call('ZADD', dead_prefix .. cause, at, h.id)
    redis.call('HSET', h.key, 'state', to, 'since', NOW, 'cause', cause)
  else
    if h.cause then count_failing(h.cause, 1) end
    if to == STATE.DELAYED then
      redis.call('ZADD', delayed, at, h.id)
      redis.call('HSET', h.key, 'state', to, 'since', NOW)
      wake_for(at)
    else
      local entry = to_lane(h.id, h.lane)
      redis.call('HSET', h.key, 'state', to, 'since', NOW, 'entry', entry)
      wake_for()
    end
  end
  record('restore', h.id, h.state, to, actor, 'reason', reason)
  return 'ok'
end
