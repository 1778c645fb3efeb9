--[[
claim: deliver one ready job to a child: the delivery, and the start where it starts at once, are
counted before its handler runs.

`v` is what READ names. The caller adds the ids to the pending zset. Appends to `reply`: id, delivery,
attempts, rescues, edition, started (1 or 0), due (Unix ms), spec.
]]
-- @include job
-- @include record
local READ = { 'state', 'entry', 'delivery', 'attempts', 'rescues', 'edition', 'run_at', 'since',
  'expires', 'parts', 'spec', 'child' }
local function claim(id, key, v, child, starts, reply)
  local delivery = string.format('%d', (tonumber(v[3]) or 0) + 1)
  local spec = v[11]
  if v[10] then spec = spec_of(key, tonumber(v[10])) end
  local due = tonumber(v[7]) and v[7] or tonumber(v[8]) and v[8] or NOW_TEXT
  -- Who settled the last delivery may ask again, when the answer was lost; a rescue leaves no child.
  if v[12] then redis.call('HSET', key, 'settled', v[12] .. ' ' .. v[3]) end
  redis.call('HSET', key, 'state', STATE.PENDING, 'since', NOW_TEXT, 'child', child, 'delivery', delivery,
    'started', starts and NOW_TEXT or '0', 'run_at', due)
  record('claim', id, STATE.READY, STATE.PENDING, child, 'delivery', delivery)
  bucket('lateness', NOW - due)
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = id, delivery, tonumber(v[4]) or 0, tonumber(v[5]) or 0
  reply[n + 5], reply[n + 6], reply[n + 7], reply[n + 8] = tonumber(v[6]) or 0, starts and 1 or 0, due, spec or ''
end
