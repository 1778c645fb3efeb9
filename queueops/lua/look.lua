--[[
look: does this delivery still own its job, and has somebody asked it to stop; with a progress to
keep, keep it.

FLAGS allow-oom
KEYS
  job_prefix    string  a job's HASH less its id
  asked_prefix  string  the HASH of whom an operation asked to stop, less its id: job -> delivery
ARGV
  id        string   the job
  child     string   who runs it
  delivery  integer  its number
  progress  string   '' or '<n>/<of>'
RETURNS
  'lost', 'cancelled' or 'ok'
]]
local key = job_prefix .. id
local v = redis.call('HMGET', key, 'state', 'child', 'delivery', 'cancel', 'cancel_op')
if v[1] ~= STATE.PENDING or v[2] ~= child or v[3] ~= delivery then return 'lost' end
if progress ~= '' then redis.call('HSET', key, 'progress', progress) end
local asked = v[4] and v[5] and asked_prefix .. v[5]
if asked and redis.pcall('HGET', asked, id) == delivery then redis.call('HSET', asked, id, delivery .. ' seen') end
return v[4] and 'cancelled' or 'ok'
