--[[
types: a failed script is not rolled back, so a key of a wrong type must be found before the first
write. wrong_type(key, type, …) answers an error reply, or nil.

KEYS
  delayed       ZSET    id -> run-at, Unix ms
  pending       ZSET    id -> not to be looked at before, Unix ms
  dead          ZSET    id -> time of death, Unix ms
  discarded     ZSET    id -> end of its keep time, Unix ms
  causes        ZSET    cause -> last seen, Unix ms
  events        STREAM  one entry for each move
  children      ZSET    child -> end of its lease, Unix ms
  wake          LIST    at most one token
  clock         HASH    keeper, alarm, token_at
  ready_prefix  string  a lane's STREAM less its lane
]]
local function wrong_type(...)
  local given = { ... }
  for i = 1, #given, 2 do
    local found = redis.call('TYPE', given[i])['ok']
    if found ~= given[i + 1] and found ~= 'none' then
      return redis.error_reply('QUEUEOPS-WRONGTYPE ' .. given[i] .. ' holds a ' .. found
        .. ' where a ' .. given[i + 1] .. ' belongs; nothing was changed')
    end
  end
end

-- any_wrong_type: the same for every shared structure of the queue.
local function any_wrong_type()
  return wrong_type(delayed, 'zset', pending, 'zset', dead, 'zset', discarded, 'zset', causes, 'zset',
    events, 'stream', children, 'zset', wake, 'list', clock, 'hash',
    ready_prefix .. LANE.FIRST, 'stream', ready_prefix .. LANE.HIGH, 'stream',
    ready_prefix .. LANE.NORMAL, 'stream', ready_prefix .. LANE.LOW, 'stream',
    ready_prefix .. LANE.SUSPECT, 'stream')
end
