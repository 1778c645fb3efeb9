--[[
hold: a ready job that a hold keeps back is delayed until the hold ends: no delivery, no attempt. It stands in
the hold's own set too, from which `lift` brings it back in the order in which it was due. What stands under
the key of that set was not looked at before the first write: with pcall (`doctor` puts it right).

`by` is one of HOLDS. The hash keeps when it was due as `run_at`, so does the event: the record, and what is
rebuilt from it, must not wait for a hold that is over.

KEYS
  held         ZSET    id of a hold that keeps jobs back -> since when, Unix ms; `held` in `Q:settings` says
                       that there is one
  held_prefix  string  ZSET of one hold, less its id: job -> when it was due, Unix ms
]]
-- @include job
-- @include record
local NO_END = 32503680000000 -- the year 3000, Unix ms: a hold without an end is lifted, it never runs out
local function hold(h, by)
  local due = tonumber(h.run_at) or h.since
  local number = string.format('%d', by.id)
  local lane = turn_of(h) == LANE.SUSPECT and LANE.SUSPECT
  redis.call('ZADD', held, 'NX', NOW, number)
  if not CONF.held then
    CONF.held = '1'
    redis.call('HSET', settings, 'held', '1')
  end
  leave(h)
  redis.pcall('ZADD', held_prefix .. number, due, h.id)
  redis.call('ZADD', delayed, by.until_ms or NO_END, h.id)
  redis.call('HSET', h.key, 'state', STATE.DELAYED, 'since', NOW_TEXT, 'held', number, 'run_at', due)
  redis.call('HDEL', h.key, 'entry', 'started')
  if lane then redis.call('HSET', h.key, 'held_lane', lane) end -- a hold clears no suspect
  if h.cause then count_failing(h.cause, 1) end
  record('hold', h.id, h.state, STATE.DELAYED, 'queueops', 'hold', number, 'run_at', due,
    'reason', 'held: ' .. by.kind .. ' ' .. by.value)
end
