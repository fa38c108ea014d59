--[[
  Takes a job that waits (in wait, paused, prioritized or delayed, parked or not) out of its line and into our
  hands, so that it can be failed as cancelled without needing a slot. Implements
  `cancel` of tests/model/sandpiper.pml.
  KEYS: <job>
  ARGV: prefix, now (ms), job id, msgpack opts as claim's, when it was said (ms)
  Returns the job as claim does; -n it is claimed, for the nth time; 1 there is no such job; 2 it has ended, or waits
  for its children, or was cancelled by what was said then, and retried by hand since. A claimed job without a mark
  fails when it is claimed again, should its worker die or retry it.
]]
local rcall = redis.call

-- Includes
--- @include "threads"
--- @include "claimed"

local jobKey, jobId = KEYS[1], ARGV[3]
local opts = cmsgpack.unpack(ARGV[4])
spContext(ARGV[1], ARGV[2], opts["sp"])
local f = spRead(jobKey)
if not f[4] then return 1 end
if rcall("HEXISTS", jobKey, "finishedOn") == 1 then return 2 end
if f[8] and f[8] ~= "" then return -(tonumber(f[6]) or 0) end -- delivered once: the stalled pass and WorkerLost see to it
local over = tonumber(rcall("HGET", jobKey, "sp:h")) or 0
if over >= tonumber(ARGV[5]) then return 2 end
local taken = rcall("ZREM", spc.delayed, jobId) == 1 or rcall("ZREM", spc.prioritized, jobId) == 1
    or rcall("LREM", spc.wait, 1, jobId) == 1 or rcall("LREM", spc.paused, 1, jobId) == 1
if not taken then
    if not rcall("LPOS", spc.active, jobId) then return 2 end
    rcall("HSET", jobKey, "sp:c", 1)
    return -(tonumber(f[6]) or 0)
end
local found = not f[7]
f[7] = f[7] or spFindThread(f)
if f[7] then spForget(f[7], jobId) end
rcall("LPUSH", spc.active, jobId)
rcall("HSET", jobKey, "delay", 0, "sp:c", 1, "sp:h", ARGV[5]) -- also if we die before it has failed
local job = spPrepare(jobId, f, found, opts["token"], opts, nil, false, nil, nil)
addBaseMarkerIfNeeded(spc.marker, false)
return job
