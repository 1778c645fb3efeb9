--[[
stats: counters of this minute and of all time, added up in the script and written once by flush().

KEYS
  stats_prefix  string  a minute's HASH less its Unix minute; kept 25 h
  stats_total   HASH    the same counters, never reset
]]
local COUNTS = {}
local function count(name, n)
  COUNTS[name] = (COUNTS[name] or 0) + (n or 1)
end

-- bucket: count a duration under the first of BOUNDS (ms) that holds it.
local function bucket(name, ms)
  for i = 1, #BOUNDS do
    if ms <= BOUNDS[i] then return count(name .. ':' .. BOUNDS[i]) end
  end
  count(name .. ':more')
end

-- flush: with pcall, since a job must not fail for a counter.
local function flush()
  local minute, is_new = nil, false
  for name, n in pairs(COUNTS) do
    minute = minute or stats_prefix .. string.format('%d', math.floor(NOW / 60000))
    is_new = redis.pcall('HINCRBY', minute, name, n) == n or is_new
    redis.pcall('HINCRBY', stats_total, name, n)
  end
  if is_new then redis.call('EXPIRE', minute, 90000) end
end
