--[[
causes: the errors of a queue by fingerprint, those of failing jobs and of dead ones.

Bounded to 1,000: at the bound the longest unseen ones that no job has give way (20 at a time), else the
new one is counted as `other`. What stands under a key of one cause is not looked at before the first write:
with pcall, since a job must not be lost for the list of its cause (`doctor` tells of the key).

KEYS
  causes        ZSET    cause -> last seen, Unix ms
  cause_prefix  string  a cause's HASH (text, first, failures, failing) less its id
  dead_prefix   string  the ZSET of the dead of one cause less its id
]]
-- make_room: false when every cause has a job; then nobody looks again for 10 s, since a look costs a
-- millisecond and a storm of new causes would make every settlement pay it.
local function make_room()
  local other = cause_prefix .. 'other'
  local until_ms = redis.pcall('HGET', other, 'full_until')
  if NOW < (tonumber(until_ms) or 0) then return false end
  local freed = 0
  for _, old in ipairs(redis.call('ZRANGE', causes, 0, 1000)) do
    local failing = tonumber(redis.pcall('HGET', cause_prefix .. old, 'failing') or '0')
    if (failing or 1) <= 0 and redis.call('EXISTS', dead_prefix .. old) == 0 then
      redis.call('ZREM', causes, old)
      redis.call('DEL', cause_prefix .. old)
      freed = freed + 1
      if freed == 20 then break end
    end
  end
  if freed == 0 then redis.pcall('HSET', other, 'full_until', NOW + 10000) end
  return freed > 0
end

local function note_cause(cause, text)
  if not redis.call('ZSCORE', causes, cause) then
    if redis.call('ZCARD', causes) >= 1000 and not make_room() then cause, text = 'other', 'other causes' end
    redis.pcall('HSETNX', cause_prefix .. cause, 'text', text)
    redis.pcall('HSETNX', cause_prefix .. cause, 'first', NOW)
  end
  redis.call('ZADD', causes, NOW, cause)
  redis.pcall('HINCRBY', cause_prefix .. cause, 'failures', 1)
  return cause
end

-- keep_cause: the cause of a job that comes back from where causes are not counted; it may have
-- given way meanwhile. Answers the cause that the job's hash must hold.
local function keep_cause(cause)
  if redis.call('ZSCORE', causes, cause) then return cause end
  return note_cause(cause, cause)
end

local function count_failing(cause, n)
  redis.pcall('HINCRBY', cause_prefix .. cause, 'failing', n)
end
