--[[
expire: a ready job whose `expires` has passed is discarded instead of delivered; restorable.
]]
-- @include discard
local function expire(h)
  discard(h, 'queueops', 'expired', 'expire')
  count('expired')
end
