--[[
due: how many members of a sorted set fall into each of `steps` steps from `from_ms` on; the first
also counts all before it. Reads only; O(steps · log n).

FLAGS single-key
ARGV
  from_ms  integer  Unix ms
  step_ms  integer  the length of a step
  steps    integer  1..1500
RETURNS
  a count a step
]]
from_ms, step_ms = assert(tonumber(from_ms)), assert(tonumber(step_ms))
local counts, below = {}, 0
for i = 1, assert(tonumber(steps)) do
  local to = redis.call('ZCOUNT', KEYS[1], '-inf', string.format('(%d', from_ms + i * step_ms))
  counts[i] = to - below
  below = to
end
return counts
