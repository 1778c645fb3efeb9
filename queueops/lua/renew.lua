--[[
renew: register children, or renew their leases; one write a child, whatever it holds. A token
that nobody answered for a second is pushed again; so is one for an alarm a second past, whose keeper
is gone with its whole tree; and one for the probation children while there are suspects, since theirs
may have gone with a tree, too. Answers which of their jobs are to be stopped hard, and when: ahead, so that
it is done in time.

FLAGS allow-oom
KEYS
  children      ZSET    child -> end of its lease, Unix ms
  ready_prefix  string  a lane's STREAM less its lane
  wake_suspect  LIST    at most one token, for the probation children
  stops         ZSET    job -> when it is stopped hard, Unix ms
  job_prefix    string  a job's HASH less its id
ARGV
  now_ms       string   '' for the server's clock
  children...  list     child ids
RETURNS
  'fresh', or the settings version and the server's time in µs; then five words a job to stop: id, delivery,
  child, Unix ms, who wants it
]]
-- @include clock
-- @include settings
-- @include wake

if not open() then return 'fresh' end
-- A worker that has nothing to do sends this and little else: one write for all, and no look at types,
-- since the first write refuses a wrong one.
for first = REST + 1, #ARGV, 1000 do
  local renewed = {}
  for i = first, math.min(first + 999, #ARGV) do
    renewed[#renewed + 1] = NOW + CONF.lease_ms
    renewed[#renewed + 1] = ARGV[i]
  end
  redis.call('ZADD', children, unpack(renewed))
end
local c = redis.pcall('HMGET', clock, 'token_at', 'alarm')
if (c[1] and NOW - c[1] > 1000) or (c[2] and NOW - c[2] > 1000) then push_token() end
if redis.pcall('XLEN', ready_prefix .. LANE.SUSPECT) ~= 0 and redis.pcall('LLEN', wake_suspect) == 0 then
  redis.pcall('RPUSH', wake_suspect, '1')
end

local STOPS = 500 -- at once, over all workers: what is behind them is told when they have ended
local answer = { CONF.version, NOW_US }
local due = redis.pcall('ZRANGE', stops, 0, STOPS - 1, 'WITHSCORES')
if not due[1] then return answer end
local mine = {}
for i = REST + 1, #ARGV do mine[ARGV[i]] = true end
for i = 1, #due, 2 do
  local id = due[i]
  local v = redis.pcall('HMGET', job_prefix .. id, 'state', 'child', 'delivery', 'stop', 'stop_by')
  if v.err or v[1] ~= STATE.PENDING or v[3] ~= v[4] then
    redis.call('ZREM', stops, id) -- that delivery has ended
  elseif mine[v[2]] then
    local n = #answer
    answer[n + 1], answer[n + 2], answer[n + 3], answer[n + 4], answer[n + 5] = id, v[3], v[2], due[i + 1], v[5] or ''
  end
end
return answer
