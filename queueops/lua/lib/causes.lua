--[[
causes: the errors of a queue by fingerprint, those of failing jobs and of dead ones.

Bounded to 1,000: at the bound the longest unseen one that no job has gives way, else the new one
is counted as `other`. What stands under a key of one cause is not looked at before the first write:
with pcall, since a job must not be lost for the list of its cause (`doctor` tells of the key).

KEYS
  causes        ZSET    cause -> last seen, Unix ms
  cause_prefix  string  a cause's HASH (text, first, failures, failing) less its id
  dead_prefix   string  the ZSET of the dead of one cause less its id
]]
local function note_cause(cause, text)
  if not redis.call('ZSCORE', causes, cause) then
    if redis.call('ZCARD', causes) >= 1000 then
      local made_room = false
      for _, old in ipairs(redis.call('ZRANGE', causes, 0, 19)) do
        local failing = tonumber(redis.pcall('HGET', cause_prefix .. old, 'failing') or '0')
        if (failing or 1) <= 0 and redis.call('EXISTS', dead_prefix .. old) == 0 then
          redis.call('ZREM', causes, old)
          redis.call('DEL', cause_prefix .. old)
          made_room = true
          break
        end
      end
      if not made_room then cause, text = 'other', 'other causes' end
    end
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
