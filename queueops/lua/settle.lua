--[[
settle: what became of a child's deliveries, many in one script. Each is checked for owner and
delivery; a repeat answers as the first time did. A late one is refused, counted and recorded.

FLAGS allow-oom
KEYS
  child_prefix  string  HASH request, batch, running: the last claim of a child
ARGV
  now_ms      string  '' for the server's clock
  child       string  who settles
  records...  list    a record: verb, id, delivery, number of arguments, the arguments:
                      start    -                      the handler starts now
                      ack      handler, result (JSON or ''), ran (ms)
                      retry    delay (ms), cause, its text, error (JSON), policy, ran (ms), and a new
                               spec when the handler asked for other arguments
                      snooze   delay (ms), reason, '1' for an unknown handler
                      release  reason
                      bury     cause, its text, error (JSON), '1' when it was an attempt, policy, ran (ms)
                      discard  reason
RETURNS
  'fresh', or a word a record: 'ok' or 'lost'
]]
-- @include clock
-- @include settings
-- @include types
-- @include wake
-- @include ack
-- @include retry
-- @include edit
-- @include snooze
-- @include release
-- @include bury
-- @include discard

if not open() then return 'fresh' end
local wrong = any_wrong_type()
if wrong then return wrong end

local soonest
local function due(run_at)
  if run_at and (not soonest or run_at < soonest) then soonest = run_at end
end

local VERBS = {
  start = function(h) redis.call('HSET', h.key, 'started', NOW_TEXT) end,
  ack = function(h, handler, result, ran_ms) ack(h, child, handler, result, ran_ms) end,
  retry = function(h, delay_ms, cause, text, error, policy, ran_ms, spec)
    due(retry(h, child, delay_ms, cause, text, error, policy, ran_ms))
    if spec then
      h.state = STATE.DELAYED
      edit(h, child, 'its handler asked for other arguments', spec)
    end
  end,
  snooze = function(h, delay_ms, reason, unknown) due(snooze(h, child, delay_ms, reason, unknown)) end,
  release = function(h, reason)
    release(h, child, reason)
    due(NOW)
  end,
  bury = function(h, cause, text, error, attempt, policy, ran_ms)
    bury(h, child, h.attempts + tonumber(attempt), cause, text, error, 'policy', policy, 'ran_ms', ran_ms)
    count('failed', tonumber(attempt))
    count('failed:' .. cause, tonumber(attempt))
  end,
  discard = function(h, reason) discard(h, child, reason) end,
}

-- Every argument is looked at before the first write: Redis does not roll a failed script back.
local records, at = {}, REST + 1
assert(#ARGV - REST < 7900, 'settle: too many records for one script')
while ARGV[at] do
  local n = assert(tonumber(ARGV[at + 3]), 'settle: a record without its number of arguments')
  assert(VERBS[ARGV[at]] and ARGV[at + 3 + n], 'settle: a record that is no record')
  if ARGV[at] == 'retry' or ARGV[at] == 'snooze' then assert(tonumber(ARGV[at + 4]), 'settle: a delay in ms') end
  records[#records + 1] = at
  at = at + 4 + n
end

PUT_OFF = { lanes = {} }
local answers = {}
for i, first in ipairs(records) do
  local verb, id, delivery, n = ARGV[first], ARGV[first + 1], ARGV[first + 2], tonumber(ARGV[first + 3])
  local h
  if verb == 'ack' then h = load_to_ack(id) else h = load(id) end
  local by = child .. ' ' .. delivery
  if h and h.child == child and h.delivery == delivery then
    if h.state == STATE.PENDING then VERBS[verb](h, unpack(ARGV, first + 4, first + 3 + n)) end
    answers[i] = 'ok' -- not pending: this delivery was settled before, and the answer was lost
  elseif h and h.settled == by then
    answers[i] = 'ok' -- the same, and the job has been delivered again since
  else
    answers[i] = 'lost'
    if verb ~= 'start' and verb ~= 'release' and not (h and h.late == by) then
      if h then redis.call('HSET', h.key, 'late', by) end -- counted once, however often it is sent
      count('late')
      record('late', id, h and h.state or 'gone', h and h.state or 'gone', child, 'delivery', delivery, 'outcome', verb)
    end
  end
end
if string.find(child, '/probation', 1, true) then redis.call('HDEL', child_prefix .. child, 'running') end
if soonest and soonest <= NOW then wake_for() elseif soonest then wake_for(soonest) end
drop_put_off()
if CONF.concurrency and not CONF.paused then
  -- A slot of the queue's limit came free; who is blocked by it does not watch the clock for it.
  local n = -redis.call('ZCARD', pending)
  for _, lane in ipairs(LANES) do n = n + redis.call('XLEN', ready_prefix .. lane) end
  if n > 0 then wake_for() end
end
finish()
return answers
