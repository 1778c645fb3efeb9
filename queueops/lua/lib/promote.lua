--[[
promote: up to `limit` delayed jobs whose time has come become ready, in the order of their
run-at (equal ones by id). Answers how many, whatever they became.
]]
-- @include job
-- @include record
-- @include corrupt
local function promote(limit)
  local due = redis.call('ZRANGEBYSCORE', delayed, '-inf', NOW, 'WITHSCORES', 'LIMIT', 0, limit)
  for i = 1, #due, 2 do
    local id, run_at = due[i], due[i + 1]
    local key = job_prefix .. id
    local v = redis.pcall('HMGET', key, 'state', 'lane', 'held', 'held_lane', 'run_at')
    if v.err then
      bury_corrupt(id, 'its key does not hold a job', STATE.DELAYED)
    elseif not v[1] then
      bury_corrupt(id, 'it was due, and its data are missing', STATE.DELAYED)
    else
      redis.call('ZREM', delayed, id)
      if v[1] == STATE.DELAYED then -- else a stale id: its hash names the truth
        local lane = v[2] or LANE.NORMAL
        if v[3] then -- its hold has ended by itself
          lane, run_at = v[4] or lane, v[5] or run_at
          unhold({ id = id, key = key, held = v[3] })
        end
        local entry = to_lane(id, lane)
        redis.call('HSET', key, 'state', STATE.READY, 'since', NOW_TEXT, 'run_at', run_at, 'entry', entry)
        record('promote', id, STATE.DELAYED, STATE.READY, 'queueops')
      end
    end
  end
  return #due / 2
end
