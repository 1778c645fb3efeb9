--[[
run_now: a person lets a delayed or ready job run before all others, and past the holds that are in force now:
so one job can be tried while the others are held.
]]
-- @include job
-- @include record
-- @include wake
-- @include holds
local function run_now(h, actor, reason)
  if h.state ~= STATE.DELAYED and h.state ~= STATE.READY then return 'wrong:' .. h.state end
  leave(h)
  if h.cause then count_failing(h.cause, 1) end
  local entry = to_lane(h.id, LANE.FIRST)
  redis.call('HSET', h.key, 'state', STATE.READY, 'since', NOW_TEXT, 'entry', entry)
  redis.call('HDEL', h.key, 'run_at')
  if HOLDS[1] then redis.call('HSET', h.key, 'past_hold', HOLDS[#HOLDS].id) end -- by id: later ones keep it back
  record('run_now', h.id, h.state, STATE.READY, actor, 'reason', reason)
  wake_for()
  return 'ok'
end
