--[[
examine: hold jobs against every rule about where a job is; mend them when asked to. One script, so
that what it sees is one instant, however much moves around it. Not for a page: about 15 calls a job.

A problem that begins with '?' breaks no promise: a claim, the sweep or the end of a lease heals it.

FLAGS allow-oom
KEYS
  job_prefix     string  a job's HASH less its id
  ready_prefix   string  a lane's STREAM less its lane
  delayed        ZSET    id -> run-at, Unix ms
  pending        ZSET    id -> not to be looked at before, Unix ms
  dead           ZSET    id -> time of death, Unix ms
  dead_prefix    string  the ZSET of the dead of one cause less its id
  discarded      ZSET    id -> end of its keep time, Unix ms
  causes         ZSET    cause -> last seen, Unix ms
  held           ZSET    id of a hold that keeps jobs back -> since when, Unix ms
  held_prefix    string  ZSET of one hold, less its id: job -> when it was due, Unix ms
ARGV
  now_ms    string  '' for the server's clock
  mend      string  '1': mend what is wrong
  items...  list    id, and where it was met: '', 'delayed', 'dead:<cause>', 'held:<hold>' …, or '<lane>/<entry id>'
RETURNS
  'fresh' (only when mending); else three words an item: its state, its cause, and what is wrong,
  a line a problem, '' for nothing
]]
-- @include clock
-- @include settings
-- @include wake
-- @include rescue
-- @include corrupt

local MEND = mend == '1'
if MEND and not open() then return 'fresh' end
local SETS = { [STATE.DELAYED] = delayed, [STATE.PENDING] = pending, [STATE.DEAD] = dead,
  [STATE.DISCARDED] = discarded }

-- A key of a wrong type is reported once, not a job: here it counts as "don't know" (nil).
local function quiet(...)
  local answer = redis.pcall(...)
  if type(answer) == 'table' and answer.err then return nil end
  return answer
end

-- set_of: the key of the set that `at` names.
local function set_of(at)
  if string.sub(at, 1, 5) == 'held:' then return held_prefix .. string.sub(at, 6) end
  return SETS[at] or dead_prefix .. string.sub(at, 6)
end

local function is_member(key, id)
  local score = quiet('ZSCORE', key, id)
  return score and true or score -- nil: don't know
end

local function entry_holds(here, id)
  local lane, at = string.match(here, '^(%l+)/(.+)$')
  if not lane then return false end
  local found = quiet('XRANGE', ready_prefix .. lane, at, at)
  if not found then return nil end
  return found[1] ~= nil and found[1][2][2] == id
end

-- in_group: 'waiting' to be delivered, the name of the consumer that has it, or 'lost' to both.
local function in_group(here)
  local lane, at = string.match(here, '^(%l+)/(.+)$')
  local held = quiet('XPENDING', ready_prefix .. lane, GROUP, at, at, 1)
  if not held then return 'waiting' end -- no group yet: the first claim makes one, from 0
  if held[1] then return held[1][2], true end
  for _, group in ipairs(quiet('XINFO', 'GROUPS', ready_prefix .. lane) or {}) do
    if group[2] == GROUP then
      for i = 1, #group, 2 do
        if group[i] == 'last-delivered-id' then
          local ms, n = string.match(group[i + 1], '^(%d+)-(%d+)$')
          local my_ms, my_n = string.match(at, '^(%d+)-(%d+)$')
          ms, n, my_ms, my_n = tonumber(ms), tonumber(n), tonumber(my_ms), tonumber(my_n)
          return (my_ms > ms or my_ms == ms and my_n > n) and 'waiting' or 'lost'
        end
      end
    end
  end
  return 'waiting'
end

local examined -- the problems of the job at hand
local function problem(text, repair)
  examined[#examined + 1] = text
  if MEND and repair then
    repair()
    examined[#examined] = text .. ' (mended)'
  end
end

-- No hash, or none that can be read: what is met of it becomes a dead job that says so.
local function examine_unreadable(id, at, found)
  if at == '' and found == 'none' then return end -- it was there a moment ago
  if found == 'none' then
    local lane = string.find(at, '/', 1, true)
    local is_there
    if lane then
      is_there = entry_holds(at, id)
    else
      is_there = is_member(set_of(at), id)
    end
    if not is_there then return end -- it has gone meanwhile
    return problem('is in ' .. at .. ', and its data are missing', function()
      if lane then
        drop_entry(at)
      else
        redis.call('ZREM', set_of(at), id)
      end
      if at ~= STATE.DISCARDED and not string.find(at, ':', 1, true) then
        bury_corrupt(id, 'its data were missing', lane and STATE.READY or at)
      end
    end)
  end
  problem('its key holds a ' .. found .. ' where a hash belongs', function()
    if string.find(at, '/', 1, true) then drop_entry(at) end
    for _, key in pairs(SETS) do redis.call('ZREM', key, id) end
    bury_corrupt(id, 'its key did not hold a job', STATE.READY)
  end)
end

local function examine_ready(h)
  if not h.entry then
    return problem('is ready and in no lane', function()
      redis.call('HSET', h.key, 'entry', to_lane(h.id, h.lane))
    end)
  end
  local holds = entry_holds(h.entry, h.id)
  if holds == false then
    return problem('is ready, and its entry ' .. h.entry .. ' is gone', function()
      redis.call('HSET', h.key, 'entry', to_lane(h.id, h.lane))
    end)
  end
  local where, delivered = in_group(h.entry)
  if where == 'lost' or delivered then
    local text = delivered and '? is ready, and its entry was given to ' .. where .. ' by hand'
      or 'is ready, and its entry ' .. h.entry .. ' was delivered before: nobody would run it'
    problem(text, function()
      drop_entry(h.entry)
      redis.call('HSET', h.key, 'entry', to_lane(h.id, h.lane))
    end)
  end
end

local function examine_pending(h)
  if not h.child then
    return problem('is pending, and no child owns it', function()
      rescue(h, false, 'it was pending without an owner')
    end)
  end
  if not h.entry then
    return problem('? is pending without an entry', function()
      redis.call('HSET', h.key, 'entry', to_lane(h.id, h.lane))
    end)
  end
  local holds = entry_holds(h.entry, h.id)
  if holds == false then
    -- A claim that meets the new entry gives it to its owner.
    problem('? is pending, and its entry ' .. h.entry .. ' is gone', function()
      redis.call('HSET', h.key, 'entry', to_lane(h.id, h.lane))
    end)
  elseif holds then
    local where, delivered = in_group(h.entry)
    if delivered and where ~= h.child then
      problem('? is pending by ' .. h.child .. ', and its entry by ' .. where, function()
        local lane, at = string.match(h.entry, '^(%l+)/(.+)$')
        redis.call('XCLAIM', ready_prefix .. lane, GROUP, h.child, 0, at, 'JUSTID')
      end)
    elseif where == 'lost' then
      problem('? is pending, and the group has forgotten its entry', function()
        local lane, at = string.match(h.entry, '^(%l+)/(.+)$')
        redis.call('XCLAIM', ready_prefix .. lane, GROUP, h.child, 0, at, 'FORCE', 'JUSTID')
      end)
    end
  end
end

local function examine_dead(h)
  if not h.cause then
    return problem('is dead without a cause', function()
      local cause = note_cause('other', 'other causes')
      redis.call('HSET', h.key, 'cause', cause)
      redis.call('ZADD', dead_prefix .. cause, h.since, h.id)
    end)
  end
  if is_member(dead_prefix .. h.cause, h.id) == false then
    problem('is dead and not listed under its cause ' .. h.cause, function()
      redis.call('ZADD', dead_prefix .. h.cause, h.since, h.id)
    end)
  end
  if is_member(causes, h.cause) == false then
    problem('is dead of ' .. h.cause .. ', which is no known cause', function()
      redis.call('HSETNX', cause_prefix .. h.cause, 'text', h.cause)
      redis.call('HSETNX', cause_prefix .. h.cause, 'first', h.since)
      redis.call('ZADD', causes, h.since, h.cause)
    end)
  end
end

-- What a hold keeps back stands in the hold's own set too: from there it is lifted.
local function examine_held(h)
  local stands = is_member(held_prefix .. h.held, h.id)
  local is_known = is_member(held, h.held)
  if stands == false or is_known == false or redis.call('HEXISTS', settings, 'held') == 0 then
    problem('is held by ' .. h.held .. ', which would never lift it', function()
      redis.call('ZADD', held_prefix .. h.held, tonumber(h.run_at) or h.since, h.id)
      redis.call('ZADD', held, 'NX', NOW, h.held)
      redis.call('HSET', settings, 'held', '1')
    end)
  end
end

-- Where a job belongs by its state, and its place there when it must be put back.
local PLACE = {
  [STATE.DELAYED] = function(h) return tonumber(h.run_at) or NOW end, -- a held one is held again by a claim
  [STATE.PENDING] = function() return NOW end, -- looked at by the next claim: a living owner keeps it
  [STATE.DEAD] = function(h) return h.since end,
  [STATE.DISCARDED] = function() return NOW + (CONF and CONF.discarded_keep_ms or 0) end,
}

local function has_spec(h)
  if redis.call('HEXISTS', h.key, 'spec') == 0 then return false end
  for i = 1, (h.parts or 1) - 1 do
    if redis.call('HEXISTS', h.key, 'spec' .. i) == 0 then return false end
  end
  return true
end

local function examine_spec(h)
  if h.state == STATE.DEAD and h.cause == 'corrupt' or has_spec(h) then return end
  if h.state == STATE.DISCARDED then return problem('? is discarded, and its spec is missing: it can only be purged') end
  problem('its spec, or a part of it, is missing', function()
    bury(h, 'queueops', h.attempts, 'corrupt', 'corrupt: the stored job can\'t be read', 'its spec was missing')
  end)
end

local function examine(h, at)
  local ttl = redis.call('PTTL', h.key)
  if h.state == STATE.DONE then
    if ttl < 0 then
      problem('is done and would stay for ever', function() redis.call('PEXPIRE', h.key, CONF.done_keep_ms) end)
    end
  elseif ttl >= 0 then
    problem('is ' .. h.state .. ' and would vanish in ' .. ttl .. ' ms', function() redis.call('PERSIST', h.key) end)
  end
  for state, key in pairs(SETS) do
    local inside = is_member(key, h.id)
    if inside and state ~= h.state then
      problem('is ' .. h.state .. ' and also in ' .. state, function() redis.call('ZREM', key, h.id) end)
    elseif inside == false and state == h.state then
      local place = PLACE[state](h)
      local note = state == STATE.DELAYED and not h.run_at and ': its run-at is lost, so it runs now' or ''
      problem('is ' .. state .. ' and not in ' .. state, function()
        redis.call('ZADD', key, place, h.id)
        examined[#examined] = examined[#examined] .. note
      end)
    end
  end
  local is_laned = h.state == STATE.READY or h.state == STATE.PENDING
  if h.entry and not is_laned and entry_holds(h.entry, h.id) then
    problem('is ' .. h.state .. ' and also in ' .. h.entry, function() drop_entry(h.entry) end)
  end
  if string.find(at, '/', 1, true) and (at ~= h.entry or not is_laned) and entry_holds(at, h.id) then
    problem('is ' .. h.state .. ' and also in ' .. at, function() drop_entry(at) end)
  end
  if string.sub(at, 1, 5) == 'dead:' and (h.state ~= STATE.DEAD or h.cause ~= string.sub(at, 6))
    and is_member(dead_prefix .. string.sub(at, 6), h.id) then
    problem('is ' .. h.state .. ' and also in ' .. at, function()
      redis.call('ZREM', dead_prefix .. string.sub(at, 6), h.id)
    end)
  end
  if string.sub(at, 1, 5) == 'held:' and (h.state ~= STATE.DELAYED or h.held ~= string.sub(at, 6))
    and is_member(set_of(at), h.id) then
    problem('? is ' .. h.state .. ' and also in ' .. at, function() redis.call('ZREM', set_of(at), h.id) end)
  end
  if h.since <= 0 then
    problem('does not say since when', function() redis.call('HSET', h.key, 'since', NOW_TEXT) end)
  end
  if h.state == STATE.DELAYED and h.held then examine_held(h) end
  if h.state == STATE.READY then examine_ready(h) end
  if h.state == STATE.PENDING then examine_pending(h) end
  if h.state == STATE.DEAD then examine_dead(h) end
  if h.state ~= STATE.DONE then examine_spec(h) end
end

local KNOWN = { [STATE.DONE] = true, [STATE.READY] = true }
for state in pairs(SETS) do KNOWN[state] = true end

local answers = {}
for i = REST + 1, #ARGV, 2 do
  local id, at = ARGV[i], ARGV[i + 1]
  examined = {}
  local found = redis.call('TYPE', job_prefix .. id)['ok']
  local h = found == 'hash' and load(id)
  if found ~= 'hash' then
    examine_unreadable(id, at, found)
  elseif not h or not KNOWN[h.state] then
    local named = h and 'has the unknown state ' .. h.state or 'has no state'
    problem(named, function()
      for _, key in pairs(SETS) do redis.call('ZREM', key, id) end
      if h and h.entry then drop_entry(h.entry) end
      if string.find(at, '/', 1, true) then drop_entry(at) end
      redis.call('PERSIST', job_prefix .. id)
      bury_corrupt(id, 'it had no state', '')
    end)
  else
    examine(h, at)
  end
  answers[#answers + 1] = h and h.state or ''
  answers[#answers + 1] = h and h.cause or ''
  answers[#answers + 1] = table.concat(examined, '\n')
end
if MEND then
  wake_for()
  finish()
end
return answers
