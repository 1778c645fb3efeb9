--[[
claim: promote what is due, lift what holds no longer keep back, rescue what ran out, expire, hold, and deliver
ready jobs to a child.

Safe to repeat: the same request number gets the same batch (an empty one is asked again), and one below the child's last, a copy
that the network held back, gets nothing. What it finds in a lane that its hash does not call ready is
repaired, not delivered.

FLAGS allow-oom
KEYS
  children      ZSET    child -> end of its lease, Unix ms; who is not in it, or whose lease is over, gets
                        nothing: its jobs would be rescued while it runs them
  child_prefix  string  HASH request, batch: the last claim of a child
  clock         HASH    keeper, alarm, token_at
  rate          HASH    tokens, at: the token bucket
ARGV
  now_ms     string   '' for the server's clock
  child      string   who claims
  request    integer  the child's request number, one higher than its last
  limit      integer  0..100 jobs at most
  starts     integer  so many of the batch start at once; the others are marked by `start`
  suspects   string   '1': a probation child, which reads the lane `suspect` and nothing else
  rescuing   string   '0' right after an outage: leases that ran out meanwhile get time to be renewed
RETURNS
  word ('ok', 'fresh', 'unregistered', 'paused'), settings version, µs until the next thing (-1 for
  none), '1' when this child is now the keeper, the server's time in µs, then a job's eight fields
  each (lib/claim.lua)
]]
-- @include clock
-- @include settings
-- @include types
-- @include wake
-- @include promote
-- @include rescue
-- @include expire
-- @include claim

local PROMOTE, RESCUE, HOLD = 200, 100, 100 -- a script's length is everybody else's latency
limit, starts = assert(tonumber(limit)), assert(tonumber(starts))
if not open() then return { 'fresh' } end
local wrong = any_wrong_type()
if wrong then return wrong end
-- A queue without holds does not pay for them, not even for making these functions at each call.
local holding
if CONF.holds or CONF.held then
-- @include holds
-- @include hold
-- @include lift
  wrong = read_holds()
  if wrong then return wrong end
  holding = { in_force = HOLDS[1], on = hold_on, hold = hold, lift_over = lift_over }
end
local lease_end = redis.call('ZSCORE', children, child)
if not lease_end or tonumber(lease_end) <= NOW then return { 'unregistered', CONF.version, -1, '0', NOW_US } end

local got = 0 -- `owned` are the ids that the child gets
local kept_back = 0 -- how many jobs a hold kept back
local reply, owned = { 'ok', CONF.version, 0, '0', NOW_US }, {}
local probation = suspects == '1'

-- The pending zset says when to look at a job; whether its delivery still owns it says the lease
-- of its child. So a renewal is one write a child, not one a job.
local function rescue_lost()
  local over = redis.call('ZRANGEBYSCORE', pending, '-inf', NOW, 'LIMIT', 0, RESCUE)
  for _, id in ipairs(over) do
    local h, why = load(id)
    if not h then
      bury_corrupt(id, 'its lease ran out, and its data are ' .. why, STATE.PENDING)
    elseif h.state ~= STATE.PENDING then
      redis.call('ZREM', pending, id)
    else
      local until_ms = h.child and tonumber(redis.call('ZSCORE', children, h.child) or '0') or 0
      if until_ms > NOW then
        redis.call('ZADD', pending, until_ms, id)
      elseif rescuing == '1' then
        local counted = h.started and h.started ~= '0'
        if counted and h.child then
          -- A whole tree was lost. While its probation child ran a suspect, only that one is guilty.
          local tree = string.match(h.child, '^(.*)/')
          local suspect = tree and redis.call('HGET', child_prefix .. tree .. '/probation', 'running')
          if suspect and suspect ~= id then counted = false end
        end
        rescue(h, counted, 'the lease of ' .. (h.child or 'its child') .. ' ran out')
      end
    end
  end
  return rescuing == '1' and #over or 0 -- else they stay, and looking again at once finds the same
end

local function deliver_to_child(id, key, v)
  local by = holding and holding.in_force and holding.on(key, spec_of(key, tonumber(v[10] or nil), v[11]))
  if by then
    kept_back = kept_back + 1
    return holding.hold(load(id), by)
  end
  claim(id, key, v, child, got < starts, reply)
  got = got + 1
  owned[got] = id
end

local function deliver(lane, entry)
  local at, id = entry[1], entry[2] and entry[2][2]
  local here = lane .. '/' .. at
  local key = id and job_prefix .. id
  local v = id and redis.pcall('HMGET', key, unpack(READ))
  if not id then
    return drop_entry(here)
  elseif v.err or not v[1] then
    drop_entry(here)
    return bury_corrupt(id, v.err and 'its key does not hold a job' or 'it was ready, and its data are missing',
      STATE.READY)
  elseif v[1] == STATE.READY and v[2] == here then
    if v[9] and tonumber(v[9]) <= NOW then return expire(load(id)) end
    deliver_to_child(id, key, v)
  elseif v[1] == STATE.READY and not v[2] then
    redis.call('HSET', key, 'entry', here) -- an entry added by hand
    deliver_to_child(id, key, v)
  else
    repair(lane, at, load(id)) -- a group that was lost and made again delivers what others run
  end
end

local function read(lane, n)
  local stream = ready_prefix .. lane
  local answer = redis.pcall('XREADGROUP', 'GROUP', GROUP, child, 'COUNT', n, 'STREAMS', stream, '>')
  if answer and answer.err then -- no group: a new lane, or a lost one. From 0, so that nothing is skipped
    redis.call('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM')
    answer = redis.call('XREADGROUP', 'GROUP', GROUP, child, 'COUNT', n, 'STREAMS', stream, '>')
  end
  if not answer then return 0 end
  for _, entry in ipairs(answer[1][2]) do deliver(lane, entry) end
  return #answer[1][2]
end

-- take_tokens: how many of `n` the rate limit allows now, and the µs until the next one.
local function refill()
  local v = redis.call('HMGET', rate, 'tokens', 'at')
  local burst = CONF.rate_burst or math.max(1, CONF.rate)
  local tokens = tonumber(v[1]) or burst
  local passed = math.max(0, NOW - (tonumber(v[2]) or NOW))
  return math.min(burst, tokens + passed * CONF.rate / 1000)
end

local function backlog()
  local n = -redis.call('ZCARD', pending)
  for _, lane in ipairs(LANES) do n = n + redis.call('XLEN', ready_prefix .. lane) end
  return n
end

local last = redis.call('HMGET', child_prefix .. child, 'request', 'batch')
if last[1] == request and last[2] ~= '' and limit > 0 then
  -- A repeat: the reply was lost. The same batch, less what is no longer this child's.
  local i = 0
  for id in string.gmatch(last[2] or '', '%S+') do
    local h = load(id)
    i = i + 1
    if h and h.state == STATE.PENDING and h.child == child then
      local n = #reply
      reply[n + 1], reply[n + 2], reply[n + 3], reply[n + 4] = id, h.delivery, h.attempts, h.rescues
      reply[n + 5], reply[n + 6] = tonumber(h.edition) or 0, h.started ~= '0' and 1 or 0
      reply[n + 7], reply[n + 8] = tonumber(h.run_at) or h.since, spec_of(h.key, h.parts) or ''
    end
  end
  return reply
end
if limit > 0 and tonumber(last[1] or '0') > tonumber(request) then return reply end

local lifted = CONF.held and holding.lift_over(HOLD) or 0
local promoted = promote(PROMOTE)
local looked_at = rescue_lost()
if CONF.paused and CONF.paused_until and CONF.paused_until <= NOW then
  redis.call('HDEL', settings, 'paused', 'paused_until', 'paused_reason')
  CONF.paused = false
end

local c = redis.call('HMGET', clock, 'keeper', 'alarm', 'token_at')
if limit > 0 and c[3] and not probation then -- this claim sees everything that the token stood for
  redis.call('DEL', wake)
  redis.call('HDEL', clock, 'token_at')
end

local room, blocked_us = limit, nil -- blocked_us: µs until a limit lets more through; -1: a settle will
local tokens
local unread = false -- whether entries that only needed repair used up the looks, and more may be behind them
if CONF.paused then
  room = 0
  blocked_us = CONF.paused_until and (CONF.paused_until - NOW) * 1000 or -1
else
  if CONF.concurrency then
    local free = math.max(0, CONF.concurrency - redis.call('ZCARD', pending))
    if free < room then room, blocked_us = free, -1 end
  end
  if CONF.rate and room > 0 then
    tokens = refill()
    if math.floor(tokens) < room then
      room = math.floor(tokens)
      blocked_us = math.ceil((1 - (tokens - room)) / CONF.rate * 1e6)
    end
  end
end

if room > 0 then
  local order = { LANE.FIRST, LANE.HIGH, LANE.NORMAL, LANE.LOW }
  if probation then
    order = { LANE.SUSPECT }
  elseif tonumber(request) % 16 == 0 then
    order = { LANE.FIRST, LANE.LOW, LANE.HIGH, LANE.NORMAL }
  end
  -- Entries that only needed repair don't use the room up, nor do jobs that are held: one more look finds what is
  -- behind the first, and many looks what is behind the others.
  local looks = holding and holding.in_force and HOLD or probation and 1 or 2
  for _, lane in ipairs(order) do
    for look = 1, looks do
      local asked = math.min(room - got, HOLD - kept_back)
      if asked <= 0 or read(lane, asked) < asked then break end
      unread = unread or look == looks
    end
  end
  unread = unread or kept_back >= HOLD
  if got < room then blocked_us = nil end -- no limit stopped this claim: the lanes are empty
  if tokens then
    redis.call('HSET', rate, 'tokens', string.format('%.6f', tokens - got), 'at', NOW)
  end
end

if limit > 0 then
  redis.call('HSET', child_prefix .. child, 'request', request, 'batch', table.concat(owned, ' '))
end
if got > 0 then
  -- The last first: a small zset is a list, searched from its head for the place of a new member.
  local last_first = {}
  for i = 1, got do
    last_first[2 * i - 1], last_first[2 * i] = lease_end, owned[got - i + 1]
  end
  redis.call('ZADD', pending, unpack(last_first))
  if probation then
    redis.call('HSET', child_prefix .. child, 'running', owned[1])
  end
  count('claimed', got)
end
if probation and got + kept_back > 0 and redis.call('XLEN', ready_prefix .. LANE.SUSPECT) > got then
  push_suspect_token()
end

-- The next thing: the first due job, the first lease to look at, what a limit waits for.
local next_us
local function no_later_than(us)
  if us and us >= 0 and (not next_us or us < next_us) then next_us = us end
end
local head = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')
if head[2] and not CONF.paused then no_later_than(math.max(0, head[2] * 1000 - NOW_US)) end
local lease = redis.call('ZRANGE', pending, 0, 0, 'WITHSCORES')
if lease[2] then
  local us = lease[2] * 1000 - NOW_US
  no_later_than(us > 0 and us or 100000) -- waits for its rescue: not in a hot loop
end
no_later_than(blocked_us)

local keeper = '0'
if got >= limit and limit > 0 or limit == 0 then
  -- No free slot: pass the work on, and the clock.
  if c[1] == child then redis.call('HDEL', clock, 'keeper', 'alarm') end
  local work = not blocked_us and (backlog() > 0 or next_us == 0)
  if work or (c[1] == child and next_us) or (limit == 0 and c[3]) then push_token() end
elseif not probation then
  if not blocked_us and (promoted >= PROMOTE or lifted >= HOLD or looked_at >= RESCUE or unread) then next_us = 0 end
  local alarm = next_us and math.floor((NOW_US + next_us) / 1000)
  local old = tonumber(c[2])
  if not c[1] or c[1] == child or (alarm and (not old or alarm < old)) or (old and NOW - old > 1000) then
    keeper = '1'
    if c[1] ~= child or old ~= alarm then
      redis.call('HSET', clock, 'keeper', child)
      if alarm then redis.call('HSET', clock, 'alarm', alarm) else redis.call('HDEL', clock, 'alarm') end
    end
  end
end
finish()

if CONF.paused then reply[1] = 'paused' end
reply[3], reply[4] = next_us and math.ceil(next_us) or -1, keeper
return reply
