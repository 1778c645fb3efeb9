--[[
release: a child gives back what it did not finish: ready again, before others, uncounted. A suspect
stays a suspect.
]]
-- @include job
-- @include record
local function release(h, actor, reason)
  leave(h)
  if h.cause then count_failing(h.cause, 1) end
  local entry = to_lane(h.id, turn_of(h))
  redis.call('HSET', h.key, 'state', STATE.READY, 'since', NOW_TEXT, 'entry', entry)
  redis.call('HDEL', h.key, 'started', 'run_at')
  record('release', h.id, h.state, STATE.READY, actor, 'delivery', h.delivery, 'reason', reason)
end
