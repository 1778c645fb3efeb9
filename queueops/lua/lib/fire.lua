--[[
fire: settle one slot of a schedule: its job is enqueued, or it is skipped, missed, or waits for the
run before it.

A schedule's state `s`: last (Unix ms of the last slot settled), live (ids of its jobs that may be
unfinished), waiting (slots that a run still holds up, oldest first, each { ms, caught }), seq and log
(what the ledger lacks: a line a decision). A slot is settled once: one that is not after `last` gets
the answer it got.

KEYS
  schedule_prefix  string  a schedule's HASH less its key
]]
-- @include enqueue
-- @include cancel
-- @include discard
local MAX_LIVE, MAX_LOG = 20, 2000

-- note: one line for the ledger: number, slot, state, now, who decided, job, slots that it stands for, why.
local function note(s, ms, state, by, id, slots, reason)
  s.seq = s.seq + 1
  s.log[#s.log + 1] = table.concat({ string.format('%d', s.seq), string.format('%d', ms), state,
    string.format('%d', NOW), by, id, slots, reason }, '\t')
  return state
end

-- noted: what was decided for a slot, as long as a line says so.
local function noted(s, ms)
  local slot = string.format('%d', ms)
  for i = #s.log, 1, -1 do
    local at, state = string.match(s.log[i], '^%d+\t(%d+)\t(%a+)')
    if at == slot then return state end
  end
end

local function is_waiting(s, ms)
  for i = 1, #s.waiting do
    if s.waiting[i].ms == ms then return i end
  end
end

-- prune_live: forget the jobs that are over; answers the first that is not. `others` were run by hand.
local function prune_live(s, others)
  local still = {}
  for i = 1, #s.live do
    local state = redis.pcall('HGET', job_prefix .. s.live[i], 'state')
    if type(state) == 'string' and is_live(state) then still[#still + 1] = s.live[i] end
  end
  while #still > MAX_LIVE do table.remove(still, 1) end
  s.live = still
  if still[1] then return still[1] end
  for id in string.gmatch(others, '%S+') do
    local state = redis.pcall('HGET', job_prefix .. id, 'state')
    if type(state) == 'string' and is_live(state) then return id end
  end
end

local function replace_live(s, actor, id)
  for i = 1, #s.live do
    local h = load(s.live[i])
    if h and h.state == STATE.PENDING then
      cancel(h, actor, 'replaced by ' .. id)
    elseif h and is_live(h.state) then
      discard(h, actor, 'replaced by ' .. id)
    end
  end
end

local function fire_job(s, ms, id, run_at, at, actor, reason)
  local state, _, later = enqueue(id, run_at, LANE.NORMAL, '', '', '', at, actor, 'fire')
  s.job, s.live[#s.live + 1] = id, id
  if state == STATE.READY then wake_for() elseif later then wake_for(later) end
  return note(s, ms, 'fired', actor, id, 1, reason)
end

-- fire: `action` is fire, catch_up, skip or miss. `at` is where the job's spec stands in ARGV.
local function fire(s, ms, id, action, reason, run_at, slots, at, actor, overlap, others, gap_ms)
  if ms > NOW then return 'early' end
  local place = is_waiting(s, ms)
  if ms <= s.last and not place then return noted(s, ms) or 'past' end
  local live = prune_live(s, others)
  if place then
    local held = live or place > 1 or (s.waiting[1].caught and NOW < s.released + gap_ms)
    if held then return 'waiting' end
    table.remove(s.waiting, 1)
    s.released = NOW
    return fire_job(s, ms, id, run_at, at, actor, reason)
  end
  s.last = ms
  if action == 'skip' then return note(s, ms, 'skipped', actor, '', slots, reason) end
  if action == 'miss' then return note(s, ms, 'missed', actor, '', slots, reason) end
  local busy = live or s.waiting[1]
  local before = live or busy and 'a slot that waits'
  if overlap == 'allow' or not busy then
    return fire_job(s, ms, id, run_at, at, actor, reason)
  elseif action == 'catch_up' or (overlap == 'queue_one' and not s.waiting[1]) then
    s.waiting[#s.waiting + 1] = { ms = ms, caught = action == 'catch_up' }
    return note(s, ms, 'waiting', actor, id, 1, 'waits for ' .. before)
  elseif overlap == 'cancel' then
    replace_live(s, actor, id)
    return fire_job(s, ms, id, run_at, at, actor, reason)
  end
  local why = overlap == 'queue_one' and 'one slot waits already, for ' or 'the run before is not over: '
  return note(s, ms, 'skipped', actor, '', 1, why .. before)
end
