--[[
sweep: find what no lease covers. A cursor a lane walks the group's pending entries, so that what
is behind many live ones is found too: entries whose job is pending but in no lease are adopted,
those that another consumer took go back to who runs the job, stale ones are dropped; children whose lease ended long ago and who hold nothing are forgotten.

KEYS
  children      ZSET    child -> end of its lease, Unix ms
  child_prefix  string  HASH request, batch: the last claim of a child
  sweep         HASH    lane -> the entry id to go on after
ARGV
  now_ms  string   '' for the server's clock
  limit   integer  entries of a lane in this call
RETURNS
  'fresh', or the numbers adopted, dropped, children forgotten, and '1' when every lane is through
]]
-- @include clock
-- @include settings
-- @include types
-- @include wake
-- @include job

limit = assert(tonumber(limit))
if not open() then return 'fresh' end
local wrong = any_wrong_type()
if wrong then return wrong end
local adopted, dropped, forgotten, through = 0, 0, 0, '1'
for _, lane in ipairs(LANES) do
  local stream = ready_prefix .. lane
  local after = redis.call('HGET', sweep, lane)
  local held = redis.pcall('XPENDING', stream, GROUP, after and '(' .. after or '-', '+', limit)
  if held.err then held = {} end
  for _, entry in ipairs(held) do
    local fields = redis.call('XRANGE', stream, entry[1], entry[1])[1]
    local id = fields and fields[2][2]
    local h = id and load(id)
    if h and h.entry == lane .. '/' .. entry[1] and h.state == STATE.PENDING then
      if not redis.call('ZSCORE', pending, id) then
        redis.call('ZADD', pending, NOW, id)
        adopted = adopted + 1
      end
      if h.child and h.child ~= entry[2] then repair(lane, entry[1], h) end
    elseif repair(lane, entry[1], h) == 'again' then -- delivered by hand: nobody ran it
      adopted = adopted + 1
    else
      dropped = dropped + 1
    end
  end
  if #held == limit then
    redis.call('HSET', sweep, lane, held[#held][1])
    through = '0'
  else
    redis.call('HDEL', sweep, lane)
  end
end
-- By its lease, never by its idle time: a quiet child is not dead, and check and deletion are one script.
local function forget(child)
  for _, lane in ipairs(LANES) do
    local held = redis.pcall('XPENDING', ready_prefix .. lane, GROUP, '-', '+', 1, child)
    if not held.err and #held > 0 then return false end
  end
  for _, lane in ipairs(LANES) do redis.pcall('XGROUP', 'DELCONSUMER', ready_prefix .. lane, GROUP, child) end
  redis.call('ZREM', children, child)
  redis.call('DEL', child_prefix .. child)
  return true
end
for _, child in ipairs(redis.call('ZRANGEBYSCORE', children, '-inf', NOW - CONF.lease_ms, 'LIMIT', 0, 100)) do
  if forget(child) then forgotten = forgotten + 1 end
end
for _, lane in ipairs(LANES) do -- consumers of children that are on no list any more
  local consumers = redis.pcall('XINFO', 'CONSUMERS', ready_prefix .. lane, GROUP)
  if not consumers.err then
    for i = 1, math.min(#consumers, 1000) do
      local name, held = consumers[i][2], consumers[i][4]
      if held == 0 and not redis.call('ZSCORE', children, name) and forget(name) then forgotten = forgotten + 1 end
    end
  end
end
if adopted > 0 then wake_for() end
return { adopted, dropped, forgotten, through }
