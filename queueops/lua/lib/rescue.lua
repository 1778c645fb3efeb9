--[[
rescue: a job whose process is lost comes back. One that had started is counted and becomes a
suspect, read by probation children only; over its limit it is dead as poison. One that had not
started keeps its turn and counts as nothing.

`why` names the signal or the end of the lease. The child is forgotten, so that its late
settlement is refused.
]]
-- @include bury
local function rescue(h, counted, why)
  redis.call('HDEL', h.key, 'child')
  if not counted then
    leave(h)
    local entry = to_lane(h.id, turn_of(h))
    redis.call('HSET', h.key, 'state', STATE.READY, 'since', NOW_TEXT, 'entry', entry)
    redis.call('HDEL', h.key, 'started', 'run_at')
    if h.cause then count_failing(h.cause, 1) end
    record('release', h.id, h.state, STATE.READY, h.child or 'queueops',
      'delivery', h.delivery or 0, 'reason', why)
    return
  end
  local rescues = h.rescues + 1
  redis.call('HSET', h.key, 'rescues', rescues)
  count('rescued')
  if rescues > CONF.max_rescues then
    return bury(h, 'queueops', h.attempts, 'poison', 'poison: its process was lost every time it ran',
      why, 'child', h.child or '', 'rescues', rescues)
  end
  leave(h)
  local entry = to_lane(h.id, LANE.SUSPECT)
  redis.call('HSET', h.key, 'state', STATE.READY, 'since', NOW_TEXT, 'entry', entry)
  redis.call('HDEL', h.key, 'started', 'run_at')
  if h.cause then count_failing(h.cause, 1) end
  record('rescue', h.id, h.state, STATE.READY, 'queueops', 'delivery', h.delivery or 0,
    'child', h.child or '', 'rescues', rescues, 'reason', why)
end
