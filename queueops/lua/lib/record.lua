--[[
record: one event for each move. finish() writes the counters and keeps the stream in its bound.

KEYS
  events    STREAM  one entry for each move; read from its start by the mirror
  settings  HASH    `events_lost`: how many were trimmed unmirrored
]]
-- @include stats
local FINAL = { [STATE.DONE] = true, [STATE.DEAD] = true, [STATE.DISCARDED] = true, gone = true }
local function record(verb, id, from, to, actor, ...)
  -- `audit: outcome` keeps the ends of a job, and what brings an ended job back.
  if CONF.audit == 'outcome' and not FINAL[to] and not FINAL[from] then return end
  redis.call('XADD', events, '*', 'verb', verb, 'id', id, 'from', from, 'to', to,
    'actor', actor, 'at', NOW, ...)
end

local function finish()
  flush()
  local over = redis.call('XLEN', events) - CONF.events_max
  if over > 0 then
    redis.call('XTRIM', events, 'MAXLEN', CONF.events_max)
    redis.call('HINCRBY', settings, 'events_lost', over)
  end
end
