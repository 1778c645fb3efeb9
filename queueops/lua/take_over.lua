--[[
take_over: a process of a Celery worker starts a job that a child of runworkers claimed and handed to it:
the delivery goes on under the process's own lease, marked started. Safe to repeat with the same token;
a second copy of the message has another, and gets 'lost'.

FLAGS allow-oom
KEYS
  children  ZSET  child -> end of its lease, Unix ms
ARGV
  now_ms    string   '' for the server's clock
  id        string   the job
  delivery  integer  its number
  child     string   who claimed it
  taker     string   who starts it
  token     string   of this start
RETURNS
  'fresh', or 'unregistered' (the taker has no lease), 'lost' (not this child's any more), 'cancelled' (a person
  wants it to stop; it is the taker's now), or 'ok'; after the last two its attempts, rescues, edition, due
  (Unix ms) and spec
]]
-- @include clock
-- @include settings
-- @include types
-- @include job

if not open() then return { 'fresh' } end
local wrong = any_wrong_type()
if wrong then return wrong end
local lease_end = redis.call('ZSCORE', children, taker)
if not lease_end or tonumber(lease_end) <= NOW then return { 'unregistered' } end

local h = load(id)
if not h or h.state ~= STATE.PENDING or h.delivery ~= delivery then return { 'lost' } end
local more = redis.call('HMGET', h.key, 'taken', 'cancel')
if h.child == child then
  local lane, at = string.match(h.entry or '', '^(%l+)/(.+)$')
  if lane then redis.pcall('XCLAIM', ready_prefix .. lane, GROUP, taker, 0, at, 'JUSTID') end
  redis.call('ZADD', pending, lease_end, id)
  redis.call('HSET', h.key, 'child', taker, 'started', NOW, 'taken', token)
elseif h.child ~= taker or more[1] ~= token then
  return { 'lost' }
end
return { more[2] and 'cancelled' or 'ok', h.attempts, h.rescues, h.edition or '0', h.run_at or h.since,
  spec_of(h.key, h.parts) or '' }
