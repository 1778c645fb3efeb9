--[[
reschedule: a delayed job gets another run-at (Unix ms). One that is ready already is too late.
]]
-- @include job
-- @include record
-- @include wake
local function reschedule(h, actor, reason, run_at)
  if h.state ~= STATE.DELAYED then return 'wrong:' .. h.state end
  redis.call('ZADD', delayed, assert(tonumber(run_at)), h.id)
  if h.held then -- at its time it is held again, if the hold is still there
    unhold(h)
    redis.call('HDEL', h.key, 'run_at')
  end
  redis.call('HSET', h.key, 'since', NOW_TEXT)
  record('reschedule', h.id, h.state, STATE.DELAYED, actor, 'reason', reason, 'run_at', run_at)
  wake_for(tonumber(run_at))
  return 'ok'
end
