--[[
act: what a person does to jobs, one verb on many ids. Safe to repeat: by operation id.

ARGV
  now_ms     string   '' for the server's clock
  verb       string   requeue, run_now, reschedule, cancel, edit, discard, restore or purge
  actor      string   user:<pk>, or what else acts
  operation  string   id of the operation; a job that carries it already answers 'ok'
  frozen_ms  string   '' or Unix ms: only jobs in their state since then or before belong to the set
  from       string   '' or the state that the set was frozen in
  reason     string   why
  items...   list     id, argument: requeue's delay (ms) or '', reschedule's run-at (Unix ms), edit's spec,
                      cancel's '' or '<ms until it is stopped hard> <who>'
RETURNS
  'fresh', or a word an id: 'ok', 'missing', 'corrupt', 'wrong:<state>', 'held:<id>' (another job
  holds its unique key), 'later' (not of the frozen set)
]]
-- @include clock
-- @include settings
-- @include types
-- @include requeue
-- @include run_now
-- @include reschedule
-- @include cancel
-- @include edit
-- @include discard
-- @include restore
-- @include purge

if not open() then return 'fresh' end
local wrong = any_wrong_type() or read_holds()
if wrong then return wrong end

local VERBS = {
  requeue = requeue, run_now = run_now, reschedule = reschedule, edit = edit, restore = restore,
  cancel = function(h, by, why, how) return cancel(h, by, why, how, operation) end,
  purge = function(h, by, why) return purge(h, by, why) end, -- not its verb argument
  discard = function(h, by, why)
    if h.state ~= STATE.DELAYED and h.state ~= STATE.READY and h.state ~= STATE.DEAD then
      return 'wrong:' .. h.state
    end
    return discard(h, by, why)
  end,
}
local act = assert(VERBS[verb], 'act: no such verb')
frozen_ms = tonumber(frozen_ms)
local answers = {}
for at = REST + 1, #ARGV, 2 do
  local id, argument = ARGV[at], ARGV[at + 1]
  if verb == 'reschedule' then assert(tonumber(argument), 'reschedule: a run-at in ms') end
  local h, why = load(id)
  local answer
  if not h then
    answer = why
    if verb == 'purge' and why == 'missing' and operation ~= '' then answer = 'ok' end -- a repeat
  elseif operation ~= '' and h.op == operation then
    answer = 'ok'
  elseif from ~= '' and h.state ~= from then
    answer = 'wrong:' .. h.state
  elseif frozen_ms and h.since > frozen_ms then
    answer = 'later'
  else
    answer = act(h, actor, reason, argument)
    if answer == 'ok' and operation ~= '' and verb ~= 'purge' then
      redis.call('HSET', h.key, 'op', operation)
    end
  end
  answers[#answers + 1] = answer
end
finish()
return answers
