--[[
edit: a person replaces a job's spec. A new edition: its idempotency key changes, since an API
refuses an old key with a new body. `spec` is the whole new spec.
]]
-- @include job
-- @include record
local function edit(h, actor, reason, spec)
  if h.state == STATE.PENDING or h.state == STATE.DONE then return 'wrong:' .. h.state end
  for i = 1, (h.parts or 1) - 1 do redis.call('HDEL', h.key, 'spec' .. i) end
  redis.call('HDEL', h.key, 'parts')
  redis.call('HSET', h.key, 'spec', spec)
  local edition = redis.call('HINCRBY', h.key, 'edition', 1)
  record('edit', h.id, h.state, h.state, actor, 'reason', reason, 'edition', edition, 'spec', spec)
  return 'ok'
end
