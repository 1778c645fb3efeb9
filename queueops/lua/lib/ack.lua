--[[
ack: the handler returned. The job becomes a tombstone that answers for its id until its keep time
ends. The spec leaves Redis here, so the event carries it for the mirror.
]]
-- @include job
-- @include record
local function ack(h, actor, handler, result, ran_ms)
  local spec = spec_of(h.key, h.parts, h.spec) or ''
  leave(h)
  local keep = CONF.done_keep_ms
  if h.unique then -- held for a time of its own: the holder must exist as long
    keep = math.max(keep, redis.call('PTTL', unique_prefix .. h.unique))
  end
  free_unique(h)
  redis.call('DEL', h.key)
  redis.call('HSET', h.key, 'state', STATE.DONE, 'since', NOW_TEXT, 'child', h.child, 'delivery', h.delivery,
    'handler', handler)
  if h.delivery ~= '1' or h.edition then -- else there is nothing to say of earlier deliveries
    redis.call('HSET', h.key, 'attempts', h.attempts, 'rescues', h.rescues, 'edition', h.edition or 0)
    if h.settled then redis.call('HSET', h.key, 'settled', h.settled) end
  end
  if result ~= '' then redis.call('HSET', h.key, 'result', result) end
  redis.call('PEXPIRE', h.key, keep)
  record('ack', h.id, h.state, STATE.DONE, actor, 'delivery', h.delivery, 'attempts', h.attempts,
    'ran_ms', ran_ms, 'result', result, 'spec', spec)
  count('done')
  bucket('ran', tonumber(ran_ms))
end
