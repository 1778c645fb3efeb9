--[[
look: does this delivery still own its job, and has somebody asked it to stop; with a progress to
keep, keep it.

FLAGS allow-oom
KEYS
  job_prefix  string  a job's HASH less its id
ARGV
  id        string   the job
  child     string   who runs it
  delivery  integer  its number
  progress  string   '' or '<n>/<of>'
RETURNS
  'lost', 'cancelled' or 'ok'
]]
local key = job_prefix .. id
local v = redis.call('HMGET', key, 'state', 'child', 'delivery', 'cancel')
if v[1] ~= STATE.PENDING or v[2] ~= child or v[3] ~= delivery then return 'lost' end
if progress ~= '' then redis.call('HSET', key, 'progress', progress) end
return v[4] and 'cancelled' or 'ok'
