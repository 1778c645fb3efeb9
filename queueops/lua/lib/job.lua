--[[
job: reading one job, taking it out of the structure of its state, putting it into a lane.

KEYS
  job_prefix     string  a job's HASH less its id
  ready_prefix   string  a lane's STREAM less its lane
  delayed        ZSET    id -> run-at, Unix ms
  pending        ZSET    id -> not to be looked at before, Unix ms
  dead           ZSET    id -> time of death, Unix ms
  dead_prefix    string  the ZSET of the dead of one cause less its id
  discarded      ZSET    id -> end of its keep time, Unix ms
  unique_prefix  string  the STRING of a unique key less its digest
]]
-- @include causes
local LIVE = { [STATE.DELAYED] = true, [STATE.READY] = true, [STATE.PENDING] = true }

-- load: the job as a table, or nil and 'missing' or 'corrupt'.
local function load(id)
  local key = job_prefix .. id
  local v = redis.pcall('HMGET', key, 'state', 'since', 'child', 'delivery', 'attempts', 'rescues',
    'entry', 'cause', 'unique', 'lane', 'edition', 'started', 'op', 'run_at', 'parts')
  if v.err then return nil, 'corrupt' end
  if not v[1] then return nil, redis.call('EXISTS', key) == 1 and 'corrupt' or 'missing' end
  return {
    id = id, key = key, state = v[1], since = tonumber(v[2]) or 0, child = v[3], delivery = v[4],
    attempts = tonumber(v[5]) or 0, rescues = tonumber(v[6]) or 0, entry = v[7], cause = v[8],
    unique = v[9], lane = v[10] or LANE.NORMAL, edition = v[11], started = v[12], op = v[13],
    run_at = v[14], parts = tonumber(v[15]),
  }
end

-- spec_of: the opaque bytes, or false. A delayed job's are cut into fields of 64 bytes, which
-- keeps the hash a listpack.
local function spec_of(key, parts)
  local spec = redis.call('HGET', key, 'spec')
  if not parts or not spec then return spec end
  local names = {}
  for i = 1, parts - 1 do names[i] = 'spec' .. i end
  local more = redis.call('HMGET', key, unpack(names))
  for i = 1, #more do
    if not more[i] then return false end
  end
  return spec .. table.concat(more)
end

local function drop_entry(entry)
  local lane, at = string.match(entry, '^(%l+)/(.+)$')
  if lane then
    redis.call('XACK', ready_prefix .. lane, GROUP, at)
    redis.call('XDEL', ready_prefix .. lane, at)
  end
end

-- leave: out of the structure of its state; what was counted for that state is uncounted.
local function leave(h)
  if h.state == STATE.DELAYED then
    redis.call('ZREM', delayed, h.id)
  elseif h.state == STATE.READY or h.state == STATE.PENDING then
    if h.state == STATE.PENDING then redis.call('ZREM', pending, h.id) end
    if h.entry then drop_entry(h.entry) end
  elseif h.state == STATE.DEAD then
    redis.call('ZREM', dead, h.id)
    if h.cause then redis.call('ZREM', dead_prefix .. h.cause, h.id) end
  elseif h.state == STATE.DISCARDED then
    redis.call('ZREM', discarded, h.id)
  end
  if h.cause and LIVE[h.state] then count_failing(h.cause, -1) end
end

-- to_lane: add the id to a lane and return the `entry` that the job's hash must hold.
local function to_lane(id, lane)
  return lane .. '/' .. redis.call('XADD', ready_prefix .. lane, '*', 'id', id)
end

-- free_unique: give the unique key up, unless it is held for a time of its own (`unique_for`).
local function free_unique(h)
  if h.unique and redis.call('GET', unique_prefix .. h.unique) == h.id
    and redis.call('PTTL', unique_prefix .. h.unique) < 0 then
    redis.call('DEL', unique_prefix .. h.unique)
  end
end

-- unique_holder: another job that holds this unique key now, and its state; nil when it is free,
-- since a holder that no longer exists is taken over.
local function unique_holder(digest, id)
  local holder = redis.call('GET', unique_prefix .. digest)
  if not holder or holder == id then return nil end
  local state = redis.call('HGET', job_prefix .. holder, 'state')
  if state and (LIVE[state] or redis.call('PTTL', unique_prefix .. digest) > 0) then
    return holder, state
  end
end
