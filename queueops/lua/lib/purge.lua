--[[
purge: a discarded job is gone now. The event carries its spec for the mirror.
]]
-- @include job
-- @include record
local function purge(h, actor, reason, verb)
  if h.state ~= STATE.DISCARDED then return 'wrong:' .. h.state end
  local spec = spec_of(h.key, h.parts) or ''
  leave(h)
  redis.call('DEL', h.key)
  record(verb or 'purge', h.id, h.state, 'gone', actor, 'reason', reason, 'spec', spec)
  return 'ok'
end
