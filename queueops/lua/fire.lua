--[[
fire: settle due slots of a schedule, oldest first, and enqueue their jobs. Safe to repeat, and by any
number of schedulers: a slot not after the last settled one gets the answer it got, and nothing moves.

KEYS
  schedule_prefix  string  HASH last (Unix ms), version, job, live, waiting, released (Unix ms), seq,
                           log, retired: one schedule, see lib/fire.lua
ARGV
  now_ms    string   '' for the server's clock
  schedule  string   its key
  version   integer  of its definition; an older one than the HASH has is refused
  settled   integer  Unix ms: the ledger has settled every slot until then; seeds `last`
  recorded  integer  the ledger holds the lines of `log` up to this number
  mode      string   '': settle slots; 'take': another definition from now on; both find 'lost' where
                     there is no HASH. 'place': take, and make the HASH; 'retire': fire no more under
                     this key in this queue
  clear     string   with a mode: why waiting slots are skipped; '' lets them wait
  overlap   string   allow, skip, queue_one or cancel
  others    string   ids, space between: jobs run by hand, which overlap too
  gap_ms    integer  a slot caught up is let go so long after the one before it
  actor     string   the scheduler
  slots...  list     a slot: Unix ms, job id, action (lib/fire.lua), reason, run_at as lib/enqueue.lua
                     takes it, number of slots that a skipped or missed one stands for, number of spec
                     parts, the parts
RETURNS
  word ('ok', 'fresh', 'lost', 'stale': a newer version is here), last, version, the server's time in
  µs, waiting (Unix ms, space between), log (lines, see `note`), then a word a slot: fired, skipped,
  missed, waiting, 'past': settled before, 'early': later than now
]]
-- @include clock
-- @include settings
-- @include types
-- @include fire

if not open() then return { 'fresh' } end
local key = schedule_prefix .. schedule
version, settled, recorded = assert(tonumber(version)), assert(tonumber(settled)), assert(tonumber(recorded))
gap_ms = assert(tonumber(gap_ms))
local wrong = any_wrong_type() or wrong_type(key, 'hash')
if wrong then return wrong end
local slots, at = {}, REST + 1
while ARGV[at] do
  assert(tonumber(ARGV[at]), 'fire: a slot in ms')
  wrong = wrong_type(job_prefix .. ARGV[at + 1], 'hash')
  if wrong then return wrong end
  slots[#slots + 1] = at
  at = at + 7 + ARGV[at + 6]
end

local v = redis.call('HMGET', key, 'last', 'version', 'seq', 'live', 'waiting', 'log', 'released', 'retired', 'job')
local here = tonumber(v[2])
if not here and (mode == '' or mode == 'take') then return { 'lost', 0, 0, NOW_US, '', '' } end
if here and (here > version or (v[8] and mode == '')) then
  return { 'stale', v[1] or 0, here, NOW_US, v[5] or '', v[6] or '' }
end

local s = {
  last = math.max(tonumber(v[1]) or 0, mode == '' and settled or 0), seq = math.max(tonumber(v[3]) or 0, recorded),
  live = {}, waiting = {}, log = {}, released = tonumber(v[7]) or 0, job = v[9],
}
for id in string.gmatch(v[4] or '', '%S+') do s.live[#s.live + 1] = id end
for ms, caught in string.gmatch(v[5] or '', '(%d+)(c?)') do
  s.waiting[#s.waiting + 1] = { ms = tonumber(ms), caught = caught == 'c' }
end
for line in string.gmatch(v[6] or '', '[^\n]+') do
  local number, ms = string.match(line, '^(%d+)\t(%d+)')
  -- The last slot's line stays, so that a repeat gets its answer.
  if tonumber(number) > recorded or tonumber(ms) == s.last then s.log[#s.log + 1] = line end
end

if mode ~= '' and clear ~= '' and (here or 0) < version then
  for _, slot in ipairs(s.waiting) do note(s, slot.ms, 'skipped', actor, '', 1, clear) end
  s.waiting = {}
end
local words = {}
for i, from in ipairs(slots) do
  words[i] = fire(s, tonumber(ARGV[from]), ARGV[from + 1], ARGV[from + 2], ARGV[from + 3], ARGV[from + 4],
    ARGV[from + 5], from + 6, actor, overlap, others, gap_ms)
end
if mode ~= '' then s.last = math.max(s.last, settled) end

local dropped = #s.log - MAX_LOG
if dropped > 0 then
  for _ = 1, dropped do table.remove(s.log, 1) end
  redis.call('HINCRBY', key, 'log_lost', dropped)
end
local waiting = {}
for i, slot in ipairs(s.waiting) do waiting[i] = string.format('%d', slot.ms) .. (slot.caught and 'c' or '') end
local fields = {
  'last', string.format('%d', s.last), 'version', version, 'seq', s.seq, 'live', table.concat(s.live, ' '),
  'waiting', table.concat(waiting, ' '), 'log', table.concat(s.log, '\n'), 'released', string.format('%d', s.released),
}
if s.job then
  fields[#fields + 1], fields[#fields + 2] = 'job', s.job
end
redis.call('HSET', key, unpack(fields))
if mode == 'retire' then
  redis.call('HSET', key, 'retired', '1')
  redis.call('PEXPIRE', key, 86400000) -- long enough for a scheduler that has not heard of it
elseif mode ~= '' then
  redis.call('HDEL', key, 'retired')
  redis.call('PERSIST', key)
end
finish()

return { 'ok', string.format('%d', s.last), version, NOW_US, table.concat(waiting, ' '), table.concat(s.log, '\n'),
  unpack(words) }
