--[[
lift: a job that a hold kept back is ready again, in its lane; a suspect is one still.
]]
-- @include job
-- @include record
-- @include holds
local function lift(h)
  local hold, lane = h.held, h.held_lane or h.lane
  leave(h)
  local entry = to_lane(h.id, lane)
  redis.call('HSET', h.key, 'state', STATE.READY, 'since', NOW_TEXT, 'entry', entry)
  if h.cause then count_failing(h.cause, 1) end
  record('lift', h.id, h.state, STATE.READY, 'queueops', 'hold', hold, 'run_at', h.run_at or NOW_TEXT)
end

-- lift_over: bring back up to `limit` jobs of holds that are no more, or over; in the order in which they were
-- due. Answers how many ids it looked at. A hold's set goes with its last job.
local function lift_over(limit)
  local in_force, n = {}, 0
  for i = 1, #HOLDS do in_force[string.format('%d', HOLDS[i].id)] = true end
  for _, number in ipairs(redis.call('ZRANGE', held, 0, 199)) do
    if not in_force[number] then
      local ids = n < limit and redis.pcall('ZRANGE', held_prefix .. number, 0, limit - n - 1) or {}
      for _, id in ipairs(ids) do -- none for an error: the key holds no zset
        local h = load(id)
        if h and h.state == STATE.DELAYED and h.held == number then
          lift(h)
        else
          redis.call('ZREM', held_prefix .. number, id) -- a stale id: its hash, if any, names the truth
        end
      end
      n = n + #ids
    end
    if redis.call('EXISTS', held_prefix .. number) == 0 then redis.call('ZREM', held, number) end
  end
  if redis.call('EXISTS', held) == 0 then
    redis.call('HDEL', settings, 'held')
    CONF.held = nil
  end
  return n
end
