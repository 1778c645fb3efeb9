--[[
cancel: ask a running job to stop; its handler sees `current_job().cancelled`.
]]
-- @include job
-- @include record
local function cancel(h, actor, reason)
  if h.state ~= STATE.PENDING then return 'wrong:' .. h.state end
  redis.call('HSET', h.key, 'cancel', actor)
  record('cancel', h.id, h.state, h.state, actor, 'reason', reason, 'delivery', h.delivery or 0)
  return 'ok'
end
