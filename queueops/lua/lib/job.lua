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
  held_prefix    string  ZSET of one hold, less its id: job -> when it was due, Unix ms
  wake_suspect   LIST    at most one token, for the probation children
]]
-- @include causes
local function is_live(state)
  return state == STATE.READY or state == STATE.DELAYED or state == STATE.PENDING
end

-- load: the job as a table, or nil and 'missing' or 'corrupt'.
local function load(id)
  local key = job_prefix .. id
  local v = redis.pcall('HMGET', key, 'state', 'since', 'child', 'delivery', 'attempts', 'rescues',
    'entry', 'cause', 'unique', 'lane', 'edition', 'started', 'op', 'run_at', 'parts', 'settled', 'late',
    'held', 'held_lane')
  if v.err then return nil, 'corrupt' end
  if not v[1] then return nil, redis.call('EXISTS', key) == 1 and 'corrupt' or 'missing' end
  return {
    id = id, key = key, state = v[1], since = tonumber(v[2]) or 0, child = v[3], delivery = v[4],
    attempts = tonumber(v[5]) or 0, rescues = tonumber(v[6]) or 0, entry = v[7], cause = v[8],
    unique = v[9], lane = v[10] or LANE.NORMAL, edition = v[11], started = v[12], op = v[13],
    run_at = v[14], parts = tonumber(v[15]), settled = v[16], late = v[17], held = v[18] or nil,
    held_lane = v[19] or nil,
  }
end

-- load_to_ack: the same for a job that is about to be acked, which needs less of it, and its spec.
local function load_to_ack(id)
  local key = job_prefix .. id
  local v = redis.pcall('HMGET', key, 'state', 'child', 'delivery', 'attempts', 'rescues', 'entry', 'cause',
    'unique', 'edition', 'parts', 'settled', 'late', 'spec')
  if v.err or not v[1] then return nil end
  return {
    id = id, key = key, state = v[1], child = v[2], delivery = v[3], attempts = v[4] or '0',
    rescues = v[5] or '0', entry = v[6], cause = v[7], unique = v[8], edition = v[9],
    parts = tonumber(v[10]), settled = v[11], late = v[12], spec = v[13],
  }
end

-- spec_of: the opaque bytes, or false. A delayed job's are cut into fields of 64 bytes, which
-- keeps the hash a listpack.
local function spec_of(key, parts, first)
  local spec = first or redis.call('HGET', key, 'spec')
  if not parts or not spec or parts == 1 then return spec end
  if not (parts > 1 and parts <= 1000) then return false end -- nan too
  local names = {}
  for i = 1, parts - 1 do names[i] = 'spec' .. i end
  local more = redis.call('HMGET', key, unpack(names))
  for i = 1, #more do
    if not more[i] then return false end
  end
  return spec .. table.concat(more)
end

local function push_suspect_token()
  if redis.pcall('LLEN', wake_suspect) == 0 then redis.pcall('RPUSH', wake_suspect, '1') end
end

-- to_lane: add the id to a lane and return the `entry` that the job's hash must hold.
local function to_lane(id, lane)
  if lane == LANE.SUSPECT then push_suspect_token() end
  return lane .. '/' .. redis.call('XADD', ready_prefix .. lane, '*', 'id', id)
end

-- turn_of: the lane of a job that keeps its turn. A suspect stays one: nothing has cleared it.
local function turn_of(h)
  return h.entry and string.find(h.entry, LANE.SUSPECT .. '/', 1, true) == 1 and LANE.SUSPECT or LANE.FIRST
end

local function drop_entry(entry)
  local lane, at = string.match(entry, '^(%l+)/(.+)$')
  if lane then
    redis.call('XACK', ready_prefix .. lane, GROUP, at)
    redis.call('XDEL', ready_prefix .. lane, at)
  end
end

-- repair: an entry that its hash does not call ready here: give it to who runs the job, put a job
-- that nobody runs into the lane again, or drop what is stale. Answers what it did.
local function repair(lane, at, h)
  local here = lane .. '/' .. at
  if h and h.entry == here and h.state == STATE.PENDING and h.child then
    redis.call('XCLAIM', ready_prefix .. lane, GROUP, h.child, 0, at, 'JUSTID')
    return 'owned'
  end
  drop_entry(here)
  if h and h.entry == here and h.state == STATE.READY then
    redis.call('HSET', h.key, 'entry', to_lane(h.id, lane))
    return 'again'
  end
  return 'dropped'
end

-- A script that settles many jobs and claims none takes them out together, by drop_put_off().
local PUT_OFF
local function drop_put_off()
  for lane, entries in pairs(PUT_OFF.lanes) do
    redis.call('XACK', ready_prefix .. lane, GROUP, unpack(entries))
    redis.call('XDEL', ready_prefix .. lane, unpack(entries))
  end
  if PUT_OFF[1] then redis.call('ZREM', pending, unpack(PUT_OFF)) end
  PUT_OFF = { lanes = {} }
end

local function put_off(h)
  local lane, at = string.match(h.entry, '^(%l+)/(.+)$')
  if not lane then return end
  PUT_OFF[#PUT_OFF + 1] = h.id
  local entries = PUT_OFF.lanes[lane] or {}
  PUT_OFF.lanes[lane] = entries
  entries[#entries + 1] = at
end

-- unhold: out of the set of the hold that keeps it back.
local function unhold(h)
  redis.pcall('ZREM', held_prefix .. h.held, h.id)
  redis.call('HDEL', h.key, 'held', 'held_lane')
end

-- leave: out of the structure of its state; what was counted for that state is uncounted.
local function leave(h)
  if h.state == STATE.DELAYED then
    redis.call('ZREM', delayed, h.id)
    if h.held then unhold(h) end
  elseif PUT_OFF and h.state == STATE.PENDING and h.entry then
    put_off(h)
  elseif h.state == STATE.READY or h.state == STATE.PENDING then
    if h.state == STATE.PENDING then redis.call('ZREM', pending, h.id) end
    if h.entry then drop_entry(h.entry) end
  elseif h.state == STATE.DEAD then
    redis.call('ZREM', dead, h.id)
    if h.cause then redis.pcall('ZREM', dead_prefix .. h.cause, h.id) end
  elseif h.state == STATE.DISCARDED then
    redis.call('ZREM', discarded, h.id)
  end
  if h.cause and is_live(h.state) then count_failing(h.cause, -1) end
end

-- free_unique: give the unique key up, unless it is held for a time of its own (`unique_for`).
local function free_unique(h)
  if h.unique and redis.call('GET', unique_prefix .. h.unique) == h.id
    and redis.call('PTTL', unique_prefix .. h.unique) < 0 then
    redis.call('DEL', unique_prefix .. h.unique)
  end
end

-- hold_unique: the job wants to run again, and holds its key again; a time of its own goes on.
local function hold_unique(h)
  if h.unique and redis.call('GET', unique_prefix .. h.unique) ~= h.id then
    redis.call('SET', unique_prefix .. h.unique, h.id)
  end
end

-- unique_holder: another job that holds this unique key now, and its state; nil when it is free,
-- since a holder that no longer exists is taken over.
local function unique_holder(digest, id)
  local holder = redis.call('GET', unique_prefix .. digest)
  if not holder or holder == id then return nil end
  local state = redis.call('HGET', job_prefix .. holder, 'state')
  if state and (is_live(state) or redis.call('PTTL', unique_prefix .. digest) > 0) then
    return holder, state
  end
end
