--[[
settings: open() reads the queue's settings into CONF; false when the queue was never published
here, which the caller answers with 'fresh'. Times in ms.

KEYS
  settings  HASH  published from the database
]]
local CONF
-- open_briefly: only what an event needs.
local function open_briefly()
  local v = redis.call('HMGET', settings, 'version', 'audit', 'events_max')
  CONF = { version = v[1], audit = v[2], events_max = tonumber(v[3]) or 1000000 }
  return v[1]
end

local function open()
  local v = redis.call('HMGET', settings, 'version', 'audit', 'events_max', 'lease_ms', 'done_keep_ms',
    'discarded_keep_ms', 'max_rescues', 'paused', 'paused_until', 'concurrency', 'rate', 'rate_burst', 'holds',
    'held')
  if not v[1] then return false end
  CONF = {
    version = v[1], audit = v[2], events_max = tonumber(v[3]) or 1000000,
    lease_ms = tonumber(v[4]) or 30000, done_keep_ms = tonumber(v[5]) or 600000,
    discarded_keep_ms = tonumber(v[6]) or 86400000, max_rescues = tonumber(v[7]) or 3,
    paused = v[8] == '1', paused_until = tonumber(v[9]),
    concurrency = tonumber(v[10]), rate = tonumber(v[11]), rate_burst = tonumber(v[12]),
    holds = v[13], held = v[14],
  }
  return true
end
