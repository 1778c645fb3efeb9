--[[
bury: give a job up: dead, under its cause, until a person requeues or discards it. Never deleted.

`attempts` is the number it died with. More pairs go to its event.
]]
-- @include job
-- @include record
local function bury(h, actor, attempts, cause, cause_text, error, ...)
  leave(h)
  cause = note_cause(cause, cause_text)
  redis.call('ZADD', dead, NOW, h.id)
  redis.pcall('ZADD', dead_prefix .. cause, NOW, h.id)
  redis.call('HSET', h.key, 'state', STATE.DEAD, 'since', NOW_TEXT, 'attempts', attempts,
    'cause', cause, 'error', error)
  redis.call('HDEL', h.key, 'entry', 'run_at', 'started')
  free_unique(h)
  record('bury', h.id, h.state, STATE.DEAD, actor, 'delivery', h.delivery or 0,
    'attempts', attempts, 'cause', cause, 'error', error, ...)
  count('dead')
end
