--[[
clock: the script's one reading of time, NOW in whole Unix ms and NOW_US in µs. NOW_TEXT is NOW as
digits: Redis turns each number that a command gets into text anew, which is dear.

Takes the script's `now_ms`: '' for the server's clock. Tests shift it ('+N', '-N') or replace it ('N').
]]
local NOW, NOW_US, NOW_TEXT
do
  local time = redis.call('TIME')
  NOW_US = time[1] * 1000000 + time[2] -- by arithmetic: the µs come unpadded
  if now_ms ~= '' then
    local sign = string.sub(now_ms, 1, 1)
    NOW_US = (sign == '+' or sign == '-') and NOW_US + now_ms * 1000 or now_ms * 1000
  end
  NOW = math.floor(NOW_US / 1000)
  NOW_TEXT = string.format('%d', NOW)
end
