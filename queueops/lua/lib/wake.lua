--[[
wake: at most one token for the waiting workers (docs/redis.md: waiting).

A token not answered for 50 ms may have gone to a worker that is gone: another is pushed.

KEYS
  wake   LIST  at most one token
  clock  HASH  keeper, alarm (Unix ms), token_at (Unix ms): who waits for the next thing
]]
-- push_token: with pcall, since a job must not fail for a wake-up; a lost one costs a wait.
local function push_token()
  if redis.pcall('LLEN', wake) == 0 then redis.pcall('RPUSH', wake, '1') end
  redis.pcall('HSET', clock, 'token_at', NOW)
end

-- wake_for: there is work at `at` (Unix ms; nil for now). Wakes when nobody would wake in time.
-- An alarm over 1 s past is no promise: its keeper is gone.
local function wake_for(at)
  local c = redis.pcall('HMGET', clock, 'alarm', 'token_at')
  if at and c[1] and at >= tonumber(c[1]) and NOW - c[1] <= 1000 then return end
  if c[2] and NOW - c[2] <= 50 and NOW >= tonumber(c[2]) then return end
  push_token()
end
