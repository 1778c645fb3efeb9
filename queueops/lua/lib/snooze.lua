--[[
snooze: the job runs again in `delay_ms` and no attempt is burned.

With `unknown` '1' the child does not know the handler; after 10 minutes of that it is dead.
]]
-- @include bury
local function snooze(h, actor, delay_ms, reason, unknown)
  if unknown == '1' then
    redis.call('HSETNX', h.key, 'unknown_since', NOW)
    if NOW - redis.call('HGET', h.key, 'unknown_since') >= 600000 then
      return bury(h, actor, h.attempts, 'unknown-handler', reason, reason)
    end
  end
  leave(h)
  if h.cause then count_failing(h.cause, 1) end
  local run_at = NOW + tonumber(delay_ms)
  redis.call('ZADD', delayed, run_at, h.id)
  redis.call('HSET', h.key, 'state', STATE.DELAYED, 'since', NOW_TEXT)
  redis.call('HDEL', h.key, 'entry', 'run_at', 'started')
  if unknown ~= '1' then redis.call('HDEL', h.key, 'unknown_since') end
  record('snooze', h.id, h.state, STATE.DELAYED, actor, 'delivery', h.delivery, 'reason', reason,
    'delay_ms', delay_ms, 'run_at', run_at)
  count('snoozed')
  return run_at
end
