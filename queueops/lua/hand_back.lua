--[[
hand_back: a child is gone and its supervisor knows it: give back what it held, at once, up to
`limit` jobs. The last call forgets the child. Safe to repeat.

FLAGS allow-oom
KEYS
  children      ZSET    child -> end of its lease, Unix ms
  child_prefix  string  HASH request, batch: the last claim of a child
ARGV
  now_ms      string   '' for the server's clock
  child       string   who is gone
  limit       integer  jobs at most in this call
  why         string   how it ended, as 'SIGKILL'
  running...  list     ids whose handlers ran: counted, and suspects
RETURNS
  'fresh', or the number of jobs given back; less than `limit`: the child is forgotten
]]
-- @include clock
-- @include settings
-- @include types
-- @include wake
-- @include rescue

limit = assert(tonumber(limit))
if not open() then return 'fresh' end
local wrong = any_wrong_type()
if wrong then return wrong end
local ran = {}
for i = REST + 1, #ARGV do ran[ARGV[i]] = true end

local given = 0
for _, lane in ipairs(LANES) do
  local stream = ready_prefix .. lane
  local held = redis.pcall('XREADGROUP', 'GROUP', GROUP, child, 'COUNT', limit - given + 1, 'STREAMS', stream, '0')
  if held and not held.err then
    for _, entry in ipairs(held[1][2]) do
      if given >= limit then break end
      local id = entry[2] and entry[2][2]
      local h = id and load(id)
      if h and h.state == STATE.PENDING and h.child == child then
        rescue(h, ran[id], why)
        if h.entry ~= lane .. '/' .. entry[1] then drop_entry(lane .. '/' .. entry[1]) end
      else
        repair(lane, entry[1], h)
      end
      given = given + 1
    end
  end
end
if given < limit then
  for _, lane in ipairs(LANES) do
    -- Its pending entries are gone with it: this comes last, when there are none.
    redis.pcall('XGROUP', 'DELCONSUMER', ready_prefix .. lane, GROUP, child)
  end
  redis.call('ZREM', children, child)
  redis.call('DEL', child_prefix .. child)
end
local keeper = redis.call('HMGET', clock, 'keeper', 'token_at')
if keeper[1] == child then redis.call('HDEL', clock, 'keeper', 'alarm') end
if given > 0 or keeper[1] == child or keeper[2] then push_token() end
finish()
return given
