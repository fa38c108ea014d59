--[[
  Turns one entry of the intake stream into a BullMQ job, once. It acknowledges first, and only what it
  acknowledged is added: a late delivery of the same entry to another replica does nothing.
  KEYS: stream:jobs, wait, prioritized, delayed, meta, id, events, marker, pc, active, <job>
  ARGV: prefix, group, entry id, job id, name, data (JSON), opts (JSON object), now (ms)
  Returns 1 admitted, 2 a job of that id exists already, 0 not ours to admit.
]]
local rcall = redis.call

-- Includes
--- @include "addDelayedJob"
--- @include "addJobInTargetList"
--- @include "addJobWithPriority"
--- @include "getOrSetMaxEvents"
--- @include "isQueuePausedOrMaxed"
--- @include "storeJob"

-- Decoded before anything is written: an error must leave the entry where it is.
local opts = cjson.decode(ARGV[7])
local jobId, jobKey, now = ARGV[4], KEYS[11], ARGV[8]
opts["jobId"] = jobId
if opts["attempts"] == nil then opts["attempts"] = 0 end

if rcall("XACK", KEYS[1], ARGV[2], ARGV[3]) == 0 then return 0 end
rcall("XDEL", KEYS[1], ARGV[3])
rcall("INCR", KEYS[6])
local maxEvents = getOrSetMaxEvents(KEYS[5])
if rcall("EXISTS", jobKey) == 1 then
    rcall("XADD", KEYS[7], "MAXLEN", "~", maxEvents, "*", "event", "duplicated", "jobId", jobId)
    return 2
end

local delay, priority = storeJob(KEYS[7], jobKey, jobId, ARGV[5], ARGV[6], opts, now, nil, nil, nil)
if delay > 0 then
    addDelayedJob(jobId, KEYS[4], KEYS[7], now, maxEvents, KEYS[8], delay)
    return 1
end
local isPausedOrMaxed = isQueuePausedOrMaxed(KEYS[5], KEYS[10])
if priority > 0 then
    addJobWithPriority(KEYS[8], KEYS[3], priority, jobId, KEYS[9], isPausedOrMaxed)
else
    addJobInTargetList(KEYS[2], KEYS[8], opts["lifo"] and "RPUSH" or "LPUSH", isPausedOrMaxed, jobId)
end
rcall("XADD", KEYS[7], "MAXLEN", "~", maxEvents, "*", "event", "waiting", "jobId", jobId)
return 1
