--[[
cancel: ask a running job to stop; its handler sees `current_job().cancelled`.

`how` is '' or '<ms> <who>': what this delivery still runs after so long is stopped hard, in that person's
name, by the supervisor of its child, which learns it with its renewals. An operation keeps whom it asked.

KEYS
  stops         ZSET    job -> when it is stopped hard, Unix ms; `renew` drops what has ended meanwhile
  asked_prefix  string  HASH of an operation, less its id: job -> the delivery that was asked, and 'seen' once
                        its handler has seen it; kept a day
]]
-- @include job
-- @include record
local ASKED_KEPT_S = 86400
local function cancel(h, actor, reason, how, operation)
  if h.state ~= STATE.PENDING then return 'wrong:' .. h.state end
  local delivery = h.delivery or '0'
  local after_ms, who = string.match(how or '', '^(%d+) (.*)$')
  redis.call('HSET', h.key, 'cancel', actor)
  if operation and operation ~= '' then
    redis.call('HSET', asked_prefix .. operation, h.id, delivery)
    redis.call('EXPIRE', asked_prefix .. operation, ASKED_KEPT_S)
    redis.call('HSET', h.key, 'cancel_op', operation)
  end
  if after_ms then
    redis.call('ZADD', stops, NOW + after_ms, h.id)
    redis.call('HSET', h.key, 'stop', delivery, 'stop_by', who)
  end
  if after_ms then
    record('cancel', h.id, h.state, h.state, actor, 'reason', reason, 'delivery', delivery, 'stop_after_ms', after_ms)
  else
    record('cancel', h.id, h.state, h.state, actor, 'reason', reason, 'delivery', delivery)
  end
  return 'ok'
end
