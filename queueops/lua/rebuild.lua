--[[
rebuild: jobs that Redis lost come back from the record. Safe to repeat: by id.

ARGV
  now_ms   string  '' for the server's clock
  actor    string  who rebuilds
  jobs...  list    jobs, as lib/rebuild.lua reads them
RETURNS
  'fresh', or a word a job: 'ok', 'known' (Redis has the id), 'held:<id>' (another job holds its unique key)
]]
-- @include clock
-- @include settings
-- @include types
-- @include rebuild

if not open() then return 'fresh' end
local wrong = any_wrong_type()
if wrong then return wrong end
local answers, at = {}, REST + 1
while ARGV[at] do
  answers[#answers + 1], at = rebuild(at, actor)
end
finish()
return answers
