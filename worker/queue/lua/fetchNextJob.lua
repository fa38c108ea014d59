--[[
  Our one override of BullMQ's include of this name: brings the next job whose thread is free.
  Same arguments and results; opts["sp"] carries what is ours:
    rid  replica id         hz  horizon of parked jobs (ms)    dm  largest job data that is decoded (bytes)
    fin  {j job id, t thread, rel release the lease?, end is it over?, seq, ms {messages}, ttl, fresh}: the end
         (or the retry) of the job that the calling script has just moved
    nf   true: do not fetch
  A fetched job has a fifth element: {runtime settings, and of the thread's record as it was before ("" when
  absent): replica, sandbox, creation, actor; "1" when its thread was cancelled}, and a sixth: how many children it is
  to wait for first (none when a child's failure called it: continueParentOnFailure).
]]

-- Includes
--- @include "getQueueMetadata"
--- @include "getNextDelayedTimestamp"
--- @include "getRateLimitTTL"
--- @include "moveJobFromPrioritizedToActive"
--- @include "prepareJobForProcessing"
--- @include "promoteDelayedJobs"
--- @include "threads"
--- @include "replies"

local function spFinish(fin)
    local jobKey = spc.prefix .. fin["j"]
    local exists = rcall("EXISTS", jobKey) == 1
    local replyKey = spc.prefix .. "reply:" .. fin["j"]
    local count = #fin["ms"]
    if count > 0 then
        if fin["fresh"] then rcall("DEL", replyKey) end
        spAppend(replyKey, fin["seq"], fin["ms"], fin["ttl"])
    end
    if exists then
        rcall("HDEL", jobKey, "sp:run")
        if fin["end"] then
            rcall("HDEL", jobKey, "sp:seq")
        elseif count > 0 then
            rcall("HSET", jobKey, "sp:seq", fin["seq"] + count - 1)
        end
    end
    if fin["rel"] then spRelease(fin["t"], fin["j"]) end
end

local function spPendingChildren(jobKey)
    local pending = rcall("SCARD", jobKey .. ":dependencies")
    if pending > 0 and rcall("EXISTS", jobKey .. ":failed") == 1 then return 0 end
    return pending
end

local function fetchNextJob(waitKey, activeKey, prioritizedKey, eventStreamKey,
    rateLimiterKey, delayedKey, metaKey, pcKey, markerKey, prefix,
    timestamp, opts)

    local sp = opts["sp"] or {}
    spContext(prefix, timestamp, sp)
    if sp["fin"] then spFinish(sp["fin"]) end
    if sp["nf"] then return nil end

    local isPausedOrMaxed, rateLimitMax, rateLimitDuration =
        getQueueMetadata(metaKey, activeKey, waitKey)

    promoteDelayedJobs(delayedKey, markerKey, waitKey, prioritizedKey,
        eventStreamKey, prefix, timestamp, pcKey, isPausedOrMaxed)

    local maxJobs = tonumber(rateLimitMax or (opts["limiter"] and opts["limiter"]["max"]))
    local expireTime = getRateLimitTTL(maxJobs, rateLimiterKey)
    if expireTime > 0 then return {0, 0, expireTime, 0} end
    if isPausedOrMaxed then return {0, 0, 0, 0} end

    local limiterDuration = (opts["limiter"] and opts["limiter"]["duration"]) or rateLimitDuration

    for _ = 1, 200 do
        local jobId = rcall("RPOPLPUSH", waitKey, activeKey)
        if jobId and string.sub(jobId, 1, 2) == "0:" then
            -- A marker that BullMQ before 5.0 left in the list.
            rcall("LREM", activeKey, 1, jobId)
        else
            jobId = jobId or moveJobFromPrioritizedToActive(prioritizedKey, activeKey, pcKey)
            if not jobId then
                local nextTimestamp = getNextDelayedTimestamp(delayedKey)
                if nextTimestamp ~= nil then return {0, 0, 0, nextTimestamp} end
                return nil
            end
            local mayRun, before, cancelled = spMayRun(jobId)
            if mayRun then
                local result = prepareJobForProcessing(prefix, rateLimiterKey,
                    eventStreamKey, jobId, timestamp, maxJobs,
                    limiterDuration, markerKey, opts)
                before = before or {}
                result[5] = {rcall("HGETALL", prefix .. "settings:runtime"), before[2] or "", before[3] or "",
                    before[4] or "", before[5] or "", cancelled and "1" or ""}
                result[6] = spPendingChildren(prefix .. jobId)
                return result
            end
        end
    end
    -- Many jobs were put aside in this call: the worker is to call again at once.
    return {0, 0, 0, tonumber(timestamp)}
end
