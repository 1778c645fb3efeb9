--[[
enqueue: a new job, delayed until `run_at` or ready at once. Safe to repeat: by id.

`at` is where its spec stands in ARGV: the number of parts, then the parts.
Answers the job's state, and the id of another job that holds its unique key.
]]
-- @include job
-- @include record
-- @include wake
local function enqueue(id, run_at, lane, unique, unique_ms, expires, at, actor, verb)
  local key = job_prefix .. id
  local known = redis.call('HGET', key, 'state')
  if known then return known, '' end
  if unique ~= '' then
    local holder, state = unique_holder(unique, id)
    if holder then return state, holder end
    if unique_ms ~= '' then
      redis.call('SET', unique_prefix .. unique, id, 'PX', unique_ms)
    else
      redis.call('SET', unique_prefix .. unique, id)
    end
  end
  local delay = run_at ~= '' and tonumber(run_at) > NOW
  local state = delay and STATE.DELAYED or STATE.READY
  local fields = { 'state', state, 'since', NOW, 'spec', ARGV[at + 1] }
  local parts = tonumber(ARGV[at])
  if parts > 1 then
    fields[7], fields[8] = 'parts', parts
    for i = 1, parts - 1 do
      fields[#fields + 1] = 'spec' .. i
      fields[#fields + 1] = ARGV[at + 1 + i]
    end
  end
  if lane ~= LANE.NORMAL then
    fields[#fields + 1] = 'lane'
    fields[#fields + 1] = lane
  end
  if unique ~= '' then
    fields[#fields + 1] = 'unique'
    fields[#fields + 1] = unique
  end
  if expires ~= '' then
    fields[#fields + 1] = 'expires'
    fields[#fields + 1] = expires
  end
  if delay then
    redis.call('ZADD', delayed, run_at, id)
  else
    fields[#fields + 1] = 'entry'
    fields[#fields + 1] = to_lane(id, lane)
  end
  redis.call('HSET', key, unpack(fields))
  if delay then
    record(verb, id, '', state, actor, 'run_at', run_at)
  else
    record(verb, id, '', state, actor)
  end
  count('enqueued')
  return state, ''
end
