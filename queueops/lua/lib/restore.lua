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
    hold_unique(h)
  end
  leave(h)
  redis.call('HDEL', h.key, 'was', 'was_at', 'reason')
  if v[3] and tonumber(v[3]) <= NOW then redis.call('HDEL', h.key, 'expires') end -- a person wants it
  local cause = (h.cause or to == STATE.DEAD) and keep_cause(h.cause or 'other')
  if cause then redis.call('HSET', h.key, 'cause', cause) end
  if to == STATE.DEAD then
    redis.call('ZADD', dead, at, h.id)
    redis.pcall('ZADD', dead_prefix .. cause, at, h.id)
    redis.call('HSET', h.key, 'state', to, 'since', NOW_TEXT)
  else
    if cause then count_failing(cause, 1) end
    if to == STATE.DELAYED then
      redis.call('ZADD', delayed, at, h.id)
      redis.call('HSET', h.key, 'state', to, 'since', NOW_TEXT)
      wake_for(at)
    else
      local entry = to_lane(h.id, h.lane)
      redis.call('HSET', h.key, 'state', to, 'since', NOW_TEXT, 'entry', entry)
      wake_for()
    end
  end
  record('restore', h.id, h.state, to, actor, 'reason', reason)
  return 'ok'
end
