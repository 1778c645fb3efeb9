--[[
rebuild: a job that Redis lost comes back from the record, in the state and with the numbers that the
record says. Safe to repeat: an id that is known is left as it is.

`at` is where its fields stand in ARGV: id, state (delayed, ready, dead or discarded), the time of
that state (run-at, death, end of its keep time; Unix ms), lane, unique digest or '', the hash's other
fields as a number and name, value pairs, the number of spec parts, the parts. Answers a word and where
the next job stands.
]]
-- @include job
-- @include record
-- @include wake
local function rebuild(at, actor)
  local id, state, when, lane, unique = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2]), ARGV[at + 3], ARGV[at + 4]
  local pairs_at, n = at + 6, tonumber(ARGV[at + 5])
  local parts_at = pairs_at + 2 * n + 1
  local parts = tonumber(ARGV[parts_at - 1])
  local following = parts_at + parts
  local key = job_prefix .. id
  if redis.call('EXISTS', key) == 1 then return 'known', following end
  local holder = unique ~= '' and is_live(state) and unique_holder(unique, id)
  if holder then return 'held:' .. holder, following end
  local said = {}
  for i = pairs_at, pairs_at + 2 * n - 1, 2 do said[ARGV[i]] = ARGV[i + 1] end
  -- The first write is the one that a wrong type refuses: nothing before it has to be undone.
  local entry
  if state == STATE.READY then
    entry = to_lane(id, lane)
  else
    local to = { [STATE.DELAYED] = delayed, [STATE.DEAD] = dead, [STATE.DISCARDED] = discarded }
    redis.call('ZADD', to[state], when, id)
  end
  redis.call('HSET', key, 'state', state, 'since', NOW_TEXT, 'spec', ARGV[parts_at], unpack(ARGV, pairs_at, pairs_at + 2 * n - 1))
  if parts > 1 then
    redis.call('HSET', key, 'parts', parts)
    for i = 1, parts - 1 do redis.call('HSET', key, 'spec' .. i, ARGV[parts_at + i]) end
  end
  if entry then redis.call('HSET', key, 'entry', entry) end
  if said.lane == nil and lane ~= LANE.NORMAL and lane ~= LANE.FIRST then redis.call('HSET', key, 'lane', lane) end
  if unique ~= '' then
    redis.call('HSET', key, 'unique', unique)
    if is_live(state) then redis.call('SET', unique_prefix .. unique, id) end
  end
  local cause = said.cause
  if cause or state == STATE.DEAD then
    cause = keep_cause(cause or 'other')
    redis.call('HSET', key, 'cause', cause)
    if state == STATE.DEAD then redis.pcall('ZADD', dead_prefix .. cause, when, id) end
    if is_live(state) then count_failing(cause, 1) end
  end
  record('rebuild', id, '', state, actor, 'delivery', said.delivery or 0, 'rescues', said.rescues or 0, 'run_at', when)
  if state == STATE.READY then wake_for() elseif state == STATE.DELAYED then wake_for(when) end
  count('rebuilt')
  return 'ok', following
end
