--[[
record: one event for each move. finish() writes the counters and keeps the stream in its bound.

KEYS
  events    STREAM  one entry for each move; read from its start by the mirror
  settings  HASH    `events_lost`: how many were trimmed unmirrored
]]
-- @include stats
-- Read before the first write: a wrong type fails here. A script adds fewer than 1,000.
local EVENTS = redis.call('XLEN', events)
local function is_final(state)
  return state == STATE.DONE or state == STATE.DEAD or state == STATE.DISCARDED or state == 'gone'
end

local function record(verb, id, from, to, actor, ...)
  -- `audit: outcome` keeps the ends of a job, and what brings an ended job back.
  if CONF.audit == 'outcome' and not is_final(to) and not is_final(from) then return end
  redis.call('XADD', events, '*', 'verb', verb, 'id', id, 'from', from, 'to', to,
    'actor', actor, 'at', NOW_TEXT, ...)
end

local function finish()
  flush()
  if EVENTS + 1000 < CONF.events_max then return end
  local over = redis.call('XLEN', events) - CONF.events_max
  if over > 0 then
    redis.call('XTRIM', events, 'MAXLEN', CONF.events_max)
    redis.call('HINCRBY', settings, 'events_lost', over)
  end
end
