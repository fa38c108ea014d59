--[[
  Ends completed jobs, many in one call, and brings as many others as are asked for. For jobs of the common kind it
  has the effects of BullMQ's moveToFinished in fewer commands: not for a job with a parent, with children or with a
  deduplication id, without its lock, or not active. Such a job is left as it is, for BullMQ's own script.
  Implements `finish` of tests/model/sandpiper.pml.
  KEYS: wait
  ARGV: prefix, now (ms), msgpack opts {lockDuration, limiter, name, maxMetricsSize, sp}, then for each job:
    id, token, "1" to bring another, return value (JSON), keep, thread or "", how many messages;
    and with messages: seq of the first, ttl (ms), "1" to drop an older reply, message ...
  keep: "0" remove the job, "" keep it, else msgpack keepJobs
  Returns {for each job 0 ended or 1 left, jobs as fetchNextJob's, rate limited for (ms), when to look again (ms)}
]]
local rcall = redis.call

-- Includes
--- @include "batches"
--- @include "fetchNextJob"
--- @include "trimEvents"

-- Functions that few calls need are made inside, when they are needed. (An include that two of them need is above.)
local function spCollect(size, count)
--- @include "collectMetrics"
    local key = spc.prefix .. "metrics:completed"
    for _ = 1, count do collectMetrics(key, key .. ":data", size, spc.now) end
end

local function spTrim(packed)
--- @include "removeJobsByMaxAge"
--- @include "removeJobsByMaxCount"
    local keep, set = cmsgpack.unpack(packed), spc.prefix .. "completed"
    if keep["age"] then removeJobsByMaxAge(spc.now, keep["age"], set, spc.prefix, keep["limit"] or 1000) end
    if keep["count"] and keep["count"] > 0 then removeJobsByMaxCount(keep["count"], set, spc.prefix) end
end

local opts = cmsgpack.unpack(ARGV[3])
spContext(ARGV[1], ARGV[2], opts["sp"])

local first, locks, kin = {}, {}, {} -- where each job's arguments begin; its keys
local leases, parked = {}, {} -- of threads
local at = 4
while ARGV[at] do
    local jobKey, thread, count = spc.prefix .. ARGV[at], ARGV[at + 5], tonumber(ARGV[at + 6])
    first[#first + 1] = at
    locks[#first] = jobKey .. ":lock"
    kin[#kin + 1] = jobKey .. ":dependencies"
    kin[#kin + 1] = jobKey .. ":unsuccessful"
    if thread ~= "" then
        leases[#leases + 1] = spc.prefix .. "lease:" .. thread
        parked[#leases] = spc.prefix .. "parked:" .. thread
    end
    at = at + 7 + (count > 0 and 3 + count or 0)
end
local held = rcall("MGET", unpack(locks))
local childless = rcall("EXISTS", unpack(kin)) == 0
-- Where nobody waits for any of the threads, all their leases go in one command.
local holders = #leases > 0 and rcall("EXISTS", unpack(parked)) == 0 and rcall("MGET", unpack(leases))

local activeIsLong = rcall("LLEN", spc.active) > 256

-- Takes a job out of active. BullMQ searches from the old end; in a long list the job is more likely a new one.
local function spLeaveActive(jobId)
    local isNew = activeIsLong and rcall("LPOS", spc.active, jobId, "MAXLEN", 512)
    return rcall("LREM", spc.active, isNew and "1" or "-1", jobId) > 0
end

-- What the end of the job needs to know, or nil when it is left to BullMQ's script.
local function spCommon(n, jobKey, token)
    if held[n] ~= token then return nil end
    if not childless and rcall("EXISTS", kin[2 * n - 1], kin[2 * n]) > 0 then return nil end
    local f = rcall("HMGET", jobKey, "timestamp", "parentKey", "parent", "deid", "atm", "sp:run", "sp:seq", "sp:c")
    return f[1] and not f[2] and not f[3] and not f[4] and f or nil
end

-- All is read before anything is written: what cannot be read then changes nothing.
local found = {}
for n, i in ipairs(first) do found[n] = spCommon(n, spc.prefix .. ARGV[i], ARGV[i + 1]) or false end

local codes, ended, gone, trims, tokens, lease = {}, {}, {}, {}, {}, 0
for n, i in ipairs(first) do
    local jobId, keep, thread, count = ARGV[i], ARGV[i + 4], ARGV[i + 5], tonumber(ARGV[i + 6])
    if thread ~= "" then lease = lease + 1 end
    local jobKey = spc.prefix .. jobId
    local f = found[n] and spLeaveActive(jobId) and found[n]
    codes[n] = f and 0 or 1
    if f then
        if #ended == 0 then trimEvents(spc.meta, spc.events) end
        ended[#ended + 1] = jobId
        gone[#gone + 1] = locks[n]
        if keep == "0" then
            gone[#gone + 1] = jobKey
            gone[#gone + 1] = jobKey .. ":logs"
            gone[#gone + 1] = jobKey .. ":processed"
            gone[#gone + 1] = jobKey .. ":failed"
        else
            rcall("ZADD", spc.prefix .. "completed", spc.now, jobId)
            rcall("HSET", jobKey, "atm", string.format("%d", (tonumber(f[5]) or 0) + 1), "returnvalue", ARGV[i + 3],
                "finishedOn", spc.now)
            if f[6] or f[7] or f[8] or thread ~= "" then rcall("HDEL", jobKey, "sp:run", "sp:seq", "sp:c", "sp:b") end
            trims[keep] = true
        end
        rcall("XADD", spc.events, "*", "event", "completed", "jobId", jobId, "returnvalue", ARGV[i + 3],
            "prev", "active")
        if count > 0 then
            local replyKey = spc.prefix .. "reply:" .. jobId
            if ARGV[i + 9] == "1" then rcall("DEL", replyKey) end
            spAppend(replyKey, tonumber(ARGV[i + 7]), {unpack(ARGV, i + 10, i + 9 + count)}, ARGV[i + 8])
        end
        if thread ~= "" then
            if not holders then
                spRelease(thread, jobId)
            elseif holders[lease] == jobId then
                gone[#gone + 1] = leases[lease]
            end
        end
        if ARGV[i + 2] == "1" then tokens[#tokens + 1] = ARGV[i + 1] end
    end
end
if #ended == 0 then return {codes, {}, 0, 0} end
rcall("SREM", spc.stalled, unpack(ended))
rcall("DEL", unpack(gone))
for keep in pairs(trims) do
    if keep ~= "" then spTrim(keep) end
end
if opts["maxMetricsSize"] ~= "" then spCollect(opts["maxMetricsSize"], #ended) end

local jobs, limited, again = {}, 0, nil
if #tokens > 0 then jobs, limited, again = spFetch(opts, tokens) end
if #jobs == 0 and not again and rcall("LLEN", spc.wait) == 0 and rcall("LLEN", spc.active) == 0
    and rcall("ZCARD", spc.prioritized) == 0 then
    rcall("XADD", spc.events, "*", "event", "drained")
end
return {codes, jobs, limited, again or 0}
