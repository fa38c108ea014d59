--[[
  Takes a job that waits (in wait, paused, prioritized or delayed, parked or not) out of its line and into our
  hands, so that it can be failed as cancelled without needing a slot.
  KEYS: <job>
  ARGV: prefix, now (ms), job id, msgpack opts as claim's
  Returns the job as claim does; 0 it is running or its run is unclear; 1 there is no such job; 2 it has ended, or
  waits for its children.
]]
local rcall = redis.call

-- Includes
--- @include "prepareJobForProcessing"
--- @include "threads"

local prefix, now, jobId = ARGV[1], ARGV[2], ARGV[3]
local opts = cmsgpack.unpack(ARGV[4])
spContext(prefix, now, opts["sp"])
local f = rcall("HMGET", KEYS[1], "timestamp", "finishedOn", "sp:run", "sp:t")
if not f[1] then return 1 end
if f[2] then return 2 end
if f[3] and f[3] ~= "" then return 0 end -- delivered once: the stalled pass and WorkerLost see to it
local taken = rcall("ZREM", spc.delayed, jobId) == 1 or rcall("ZREM", spc.prioritized, jobId) == 1
    or rcall("LREM", spc.wait, 1, jobId) == 1 or rcall("LREM", spc.paused, 1, jobId) == 1
if not taken then
    return rcall("LPOS", spc.active, jobId) and 0 or 2
end
local thread = f[4] or spFindThread(KEYS[1])
if thread and not f[4] then rcall("HSET", KEYS[1], "sp:t", thread) end
if thread then rcall("ZREM", prefix .. "parked:" .. thread, jobId) end
rcall("LPUSH", spc.active, jobId)
rcall("HSET", KEYS[1], "delay", 0)
local result = prepareJobForProcessing(prefix, prefix .. "limiter", spc.events, jobId, now, nil, nil, spc.marker, opts)
result[5] = {{}, "", "", "", ""}
return result
