--[[
enqueue: add jobs, each delayed or ready. Safe to repeat: an id that is known is left as it is.

ARGV
  now_ms   string  '' for the server's clock (tests: '+N', '-N', 'N')
  actor    string  who enqueues
  jobs...  list    a job: id, run_at (Unix ms, '+N' for N ms from now, or ''), lane, unique digest or '',
                   unique_for (ms or ''), expires (as run_at), number of spec parts, the parts
RETURNS
  'fresh' when the queue is not published here; else three words a job: its state, '' and its run-at (Unix ms;
  0 for ready), or the state and id of the job that is there already (the same id, or the holder of its
  unique key) and 0
]]
-- @include clock
-- @include settings
-- @include enqueue

if not open_briefly() then return 'fresh' end

local answers, at = {}, REST + 1
local soonest -- Unix ms of the first delayed one; false when one is ready
while ARGV[at] do
  local state, there, run_at = enqueue(ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4],
    ARGV[at + 5], at + 6, actor, 'enqueue')
  if state == STATE.READY then
    soonest = false
  elseif run_at and soonest ~= false and (not soonest or run_at < soonest) then
    soonest = run_at
  end
  answers[#answers + 1] = state
  answers[#answers + 1] = there
  answers[#answers + 1] = run_at or 0
  at = at + 7 + ARGV[at + 6]
end
if soonest == false then wake_for() elseif soonest then wake_for(soonest) end
finish()
return answers
