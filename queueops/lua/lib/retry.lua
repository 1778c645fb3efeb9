--[[
retry: an attempt ended in an error or a time-out; the job is delayed by `delay_ms`.
]]
-- @include job
-- @include record
local function retry(h, actor, delay_ms, cause, cause_text, error, policy, ran_ms)
  leave(h)
  cause = note_cause(cause, cause_text)
  count_failing(cause, 1)
  local attempts, run_at = h.attempts + 1, NOW + tonumber(delay_ms)
  redis.call('ZADD', delayed, run_at, h.id)
  redis.call('HSET', h.key, 'state', STATE.DELAYED, 'since', NOW_TEXT, 'attempts', attempts,
    'cause', cause, 'error', error)
  redis.call('HDEL', h.key, 'entry', 'run_at', 'started', 'unknown_since')
  record('retry', h.id, h.state, STATE.DELAYED, actor, 'delivery', h.delivery, 'attempts', attempts,
    'cause', cause, 'error', error, 'delay_ms', delay_ms, 'run_at', run_at, 'policy', policy,
    'ran_ms', ran_ms)
  count('failed')
  count('failed:' .. cause)
  bucket('ran', tonumber(ran_ms))
  return run_at
end
