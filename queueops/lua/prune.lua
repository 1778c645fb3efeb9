--[[
prune: discarded jobs whose keep time is over are gone.

ARGV
  now_ms  string   '' for the server's clock
  limit   integer  jobs at most
RETURNS
  'fresh', or how many went
]]
-- @include clock
-- @include settings
-- @include types
-- @include prune

if not open() then return 'fresh' end
local wrong = any_wrong_type()
if wrong then return wrong end
local gone = prune(assert(tonumber(limit)))
finish()
return gone
