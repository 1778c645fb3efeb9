--[[
holds: what keeps some of a queue's jobs back (queueops/holds.py writes them). read_holds() comes before the
first write: it answers an error reply, or nil. A queue without holds has nothing to read.

HOLDS are those in force, by their ids: id, kind (handler, cause or tag), value, mark (bytes that a matching
spec must have), name and is (of a tag), until_ms or nil.

KEYS
  held  ZSET  id of a hold that keeps jobs back -> since when, Unix ms; `held` in `Q:settings` says that
              there is one
]]
-- @include types
local HOLDS = {}
local function read_holds()
  if not CONF.holds and not CONF.held then return end
  for _, each in ipairs(CONF.holds and cjson.decode(CONF.holds) or {}) do
    if not each.until_ms or each.until_ms > NOW then HOLDS[#HOLDS + 1] = each end
  end
  return wrong_type(held, 'zset')
end

local function has_tag(spec, name, is)
  local ok, parts = pcall(cjson.decode, spec)
  local options = ok and type(parts) == 'table' and parts[4]
  return type(options) == 'table' and type(options.tags) == 'table' and options.tags[name] == is
end

-- is_meant: the spec is JSON, `["<handler>", …, {"tags": …}]` (payload.py): most are told by a look at their bytes.
local function is_meant(by, cause, spec)
  if by.kind == 'cause' then return cause == by.value end
  if not spec then return false end
  if by.kind == 'handler' then return string.sub(spec, 1, #by.mark) == by.mark end
  return string.find(spec, by.mark, 1, true) and has_tag(spec, by.name, by.is)
end

-- hold_on: the hold that keeps this job back; nil when none does, or a person let it past (run_now).
local function hold_on(key, spec)
  local v = redis.call('HMGET', key, 'cause', 'past_hold')
  local past = tonumber(v[2] or 0) or 0
  for i = 1, #HOLDS do
    if HOLDS[i].id > past and is_meant(HOLDS[i], v[1], spec) then return HOLDS[i] end
  end
end
