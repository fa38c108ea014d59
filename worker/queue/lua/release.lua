--[[
  Gives a thread back for a job that was moved where it holds nothing (waiting for its children).
  KEYS: lease:<T>
  ARGV: prefix, thread, job id, now (ms)
  Returns 1 when the thread was given back, 0 when another job has it, or the job may run again already.
]]
local rcall = redis.call

-- Includes
--- @include "threads"

spContext(ARGV[1], ARGV[4], {})
if rcall("GET", KEYS[1]) ~= ARGV[3] or spHolds(KEYS[1], ARGV[3]) then return 0 end
spRelease(ARGV[2], ARGV[3])
return 1
