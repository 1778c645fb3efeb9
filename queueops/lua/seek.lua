--[[
seek: up to `count` members of a sorted set after one place in it, whether or not a member is there
still: so that a page goes on where it ended while rows move. Reads only; O(log n + count).

FLAGS single-key
ARGV
  score    string   '' for the start; else the place: a score
  member   string   and a member
  reverse  string   '1' from high to low
  count    integer  0..1000
RETURNS
  the size of the set, then member and score of each
]]
count = assert(tonumber(count))
local size = redis.call('ZCARD', KEYS[1])

-- By bytes, as Redis sorts equal scores: Lua's `<` asks the locale.
local function before(a, b)
  for i = 1, math.min(#a, #b) do
    local x, y = string.byte(a, i), string.byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

-- rank_of: how many members stand before (score, member), from the low end; `inclusive`
-- counts the member itself.
local function rank_of(inclusive)
  local here = redis.call('ZSCORE', KEYS[1], member)
  if here and tonumber(here) == tonumber(score) then
    return redis.call('ZRANK', KEYS[1], member) + (inclusive and 1 or 0)
  end
  local low = redis.call('ZCOUNT', KEYS[1], '-inf', '(' .. score)
  local high = redis.call('ZCOUNT', KEYS[1], '-inf', score)
  while low < high do -- among equal scores, by halves
    local middle = math.floor((low + high) / 2)
    if before(redis.call('ZRANGE', KEYS[1], middle, middle)[1], member) then
      low = middle + 1
    else
      high = middle
    end
  end
  return low
end

local found = {}
if count > 0 then
  if reverse == '1' then
    local last = size - 1
    if score ~= '' then last = rank_of(false) - 1 end
    if last >= 0 then
      local first = math.max(0, last - count + 1)
      local from = size - 1 - last
      found = redis.call('ZREVRANGE', KEYS[1], from, from + (last - first), 'WITHSCORES')
    end
  else
    local first = score ~= '' and rank_of(true) or 0
    found = redis.call('ZRANGE', KEYS[1], first, first + count - 1, 'WITHSCORES')
  end
end
table.insert(found, 1, size)
return found
