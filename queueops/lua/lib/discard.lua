--[[
discard: set a job aside. It keeps what it was, so that restore can put it back, until its keep
time ends.
]]
-- @include job
-- @include record
local function discard(h, actor, reason, verb, ...)
  local was, was_at = h.state, NOW
  if was == STATE.DELAYED then was_at = h.held and h.run_at or redis.call('ZSCORE', delayed, h.id) or NOW end
  if was == STATE.DEAD then was_at = redis.call('ZSCORE', dead, h.id) or NOW end
  if was == STATE.PENDING then was = STATE.READY end -- by its handler: restored, it runs again
  leave(h)
  redis.call('ZADD', discarded, NOW + CONF.discarded_keep_ms, h.id)
  redis.call('HSET', h.key, 'state', STATE.DISCARDED, 'since', NOW_TEXT, 'was', was, 'was_at', was_at,
    'reason', reason)
  redis.call('HDEL', h.key, 'entry', 'started')
  free_unique(h)
  record(verb or 'discard', h.id, h.state, STATE.DISCARDED, actor, 'reason', reason, ...)
  count('discarded')
  return 'ok'
end
