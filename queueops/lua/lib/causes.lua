--[[
causes: the errors of a queue by fingerprint, those of failing jobs and of dead ones.

Bounded to 1,000: at the bound the longest unseen one that no job has gives way, else the new one
is counted as `other`.

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
        local failing = tonumber(redis.call('HGET', cause_prefix .. old, 'failing') or '0')
        if failing <= 0 and redis.call('EXISTS', dead_prefix .. old) == 0 then
          redis.call('ZREM', causes, old)
          redis.call('DEL', cause_prefix .. old)
          made_room = true
          break
        end
      end
      if not made_room then cause, text = 'other', 'other causes' end
    end
    redis.call('HSETNX', cause_prefix .. cause, 'text', text)
    redis.call('HSETNX', cause_prefix .. cause, 'first', NOW)
  end
  redis.call('ZADD', causes, NOW, cause)
  redis.call('HINCRBY', cause_prefix .. cause, 'failures', 1)
  return cause
end

local function count_failing(cause, n)
  redis.call('HINCRBY', cause_prefix .. cause, 'failing', n)
end
