--[[
enqueue: a new job, delayed until `run_at` or ready at once. Safe to repeat: by id.

`run_at` and `expires` are Unix ms, or '+N' for N ms from now. `at` is where its spec stands in ARGV:
the number of parts, then the parts. Answers a state and '' for a job that was added; else the state
and id of the job that is there: the same id, or the holder of its unique key.
]]
-- @include job
-- @include record
-- @include wake
local function instant(given)
  return (string.sub(given, 1, 1) == '+' and NOW or 0) + given
end

local function enqueue(id, run_at, lane, unique, unique_ms, expires, at, actor, verb)
  local key = job_prefix .. id
  local known = redis.call('HGET', key, 'state')
  if known then return known, id end
  if unique ~= '' then
    local holder, state = unique_holder(unique, id)
    if holder then return state, holder end
  end
  run_at = run_at ~= '' and instant(run_at)
  local state = run_at and run_at > NOW and STATE.DELAYED or STATE.READY
  local fields = { 'state', state, 'since', NOW_TEXT, 'spec', ARGV[at + 1] }
  local n = 6
  local function add(name, value)
    fields[n + 1], fields[n + 2] = name, value
    n = n + 2
  end
  local parts = tonumber(ARGV[at])
  if parts > 1 then
    add('parts', parts)
    for i = 1, parts - 1 do add('spec' .. i, ARGV[at + 1 + i]) end
  end
  if lane ~= LANE.NORMAL then add('lane', lane) end
  if unique ~= '' then add('unique', unique) end
  if expires ~= '' then add('expires', instant(expires)) end
  -- The first write is the one that a wrong type refuses: nothing before it has to be undone.
  if state == STATE.DELAYED then
    redis.call('ZADD', delayed, run_at, id)
  else
    add('entry', to_lane(id, lane))
  end
  redis.call('HSET', key, unpack(fields))
  if unique ~= '' then
    if unique_ms ~= '' then
      redis.call('SET', unique_prefix .. unique, id, 'PX', unique_ms)
    else
      redis.call('SET', unique_prefix .. unique, id)
    end
  end
  if state == STATE.DELAYED then
    record(verb, id, '', state, actor, 'run_at', run_at)
  else
    record(verb, id, '', state, actor)
    run_at = nil
  end
  count('enqueued')
  return state, '', run_at
end
