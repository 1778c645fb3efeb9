--[[
requeue: a person sends a dead job again: a new cycle, attempts and rescues 0, the delivery goes
on growing. Ready at once, or delayed by `delay_ms`.
]]
-- @include job
-- @include record
-- @include wake
local function requeue(h, actor, reason, delay_ms)
  if h.state ~= STATE.DEAD then return 'wrong:' .. h.state end
  if h.unique then
    local holder = unique_holder(h.unique, h.id)
    if holder then return 'held:' .. holder end
  end
  local delay = tonumber(delay_ms) or 0
  leave(h)
  hold_unique(h)
  redis.call('HDEL', h.key, 'cause', 'unknown_since', 'cancel', 'cancel_op', 'stop', 'stop_by', 'rescues', 'attempts')
  redis.call('HINCRBY', h.key, 'requeues', 1)
  local expires = redis.call('HGET', h.key, 'expires')
  if expires and tonumber(expires) <= NOW then redis.call('HDEL', h.key, 'expires') end -- a person wants it
  if delay > 0 then
    redis.call('ZADD', delayed, NOW + delay, h.id)
    redis.call('HSET', h.key, 'state', STATE.DELAYED, 'since', NOW_TEXT)
    record('requeue', h.id, h.state, STATE.DELAYED, actor, 'reason', reason, 'run_at', NOW + delay)
    wake_for(NOW + delay)
  else
    local entry = to_lane(h.id, h.lane)
    redis.call('HSET', h.key, 'state', STATE.READY, 'since', NOW_TEXT, 'entry', entry)
    record('requeue', h.id, h.state, STATE.READY, actor, 'reason', reason)
    wake_for()
  end
  count('requeued')
  return 'ok'
end
