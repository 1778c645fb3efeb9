--[[
unclaim: unique keys whose holder does not hold them: it is gone, has settled, or never asked for
them. Free them when asked to.

FLAGS allow-oom
KEYS
  job_prefix     string  a job's HASH less its id
  unique_prefix  string  the STRING of a unique key less its digest
ARGV
  mend        string  '1': free what nobody holds
  digests...  list    of unique keys
RETURNS
  a word a digest: '' when it is held or has gone, else the id that it names
]]
local answers = {}
for i = REST + 1, #ARGV do
  local key = unique_prefix .. ARGV[i]
  local stale = ''
  local holder = redis.call('GET', key)
  if holder and redis.call('PTTL', key) < 0 then
    local v = redis.pcall('HMGET', job_prefix .. holder, 'state', 'unique')
    local live = v[1] == STATE.DELAYED or v[1] == STATE.READY or v[1] == STATE.PENDING
    if v.err or not live or v[2] ~= ARGV[i] then
      stale = holder
      if mend == '1' then redis.call('DEL', key) end
    end
  end
  answers[#answers + 1] = stale
end
return answers
