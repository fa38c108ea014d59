--[[
  Our override of BullMQ's include of this name: brings the next job whose thread is free.
  Implements `claim` of tests/model/sandpiper.pml, and `finish` and `retry` in the call that BullMQ's script has begun.
  Same arguments and results; opts["sp"] carries what is ours:
    rid  replica id         hz  horizon of parked jobs (ms)    dm  largest job data that is decoded (bytes)
    fin  {j job id, t thread, rel release the lease?, end is it over?, seq, ms {messages}, ttl, fresh}: the end
         (or the retry) of the job that the calling script has just moved
    nf   true: do not fetch
  A fetched job is {fields (see spRead; absent ones at the end left out), id, its thread's record as it was before or
  0, how many children it is to wait for first, 1 when its thread was cancelled, and with the first job of a call:
  runtime settings, when to look again (ms; in the past: at once)}, where zeros at the end are left out. It waits for
  no children when a child's failure called it (continueParentOnFailure).
]]

-- Includes
--- @include "addJobInTargetList"
--- @include "getNextDelayedTimestamp"
--- @include "getRateLimitTTL"
--- @include "moveJobFromPrioritizedToActive"
--- @include "threads"
--- @include "claimed"
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
            rcall("HDEL", jobKey, "sp:seq", "sp:c")
        elseif count > 0 then
            rcall("HSET", jobKey, "sp:seq", fin["seq"] + count - 1)
        end
    end
    if fin["rel"] then spRelease(fin["t"], fin["j"]) end
end

-- Says of each job how many children it is to wait for: hardly ever one, so they are asked for together.
local function spCountChildren(jobs)
    local keys = {}
    for i = 1, #jobs do keys[i] = spc.prefix .. jobs[i][2] .. ":dependencies" end
    if rcall("EXISTS", unpack(keys)) == 0 then return end
    for i = 1, #jobs do
        local pending = rcall("SCARD", keys[i])
        if pending > 0 and rcall("EXISTS", spc.prefix .. jobs[i][2] .. ":failed") == 0 then spTell(jobs[i], 4, pending) end
    end
end

-- Delayed jobs that are due go to their lines; at most 200 in a call, so that it is short: the next call goes on.
local function spPromote(isPaused)
    local function rcall(command, ...)
        local args = {...}
        if command == "ZRANGEBYSCORE" then args[#args] = 200 end
        return redis.call(command, unpack(args))
    end
--- @include "promoteDelayedJobs"
    promoteDelayedJobs(spc.delayed, spc.marker, spc.wait, spc.prioritized, spc.events, spc.prefix, spc.now, spc.pc,
        isPaused)
end

-- The next id, moved to active; nil when nothing waits.
local function spPop()
    local jobId = rcall("RPOPLPUSH", spc.wait, spc.active)
    while jobId and string.sub(jobId, 1, 2) == "0:" do
        -- A marker that BullMQ before 5.0 left in the list.
        rcall("LREM", spc.active, "1", jobId)
        jobId = rcall("RPOPLPUSH", spc.wait, spc.active)
    end
    return jobId or moveJobFromPrioritizedToActive(spc.prioritized, spc.active, spc.pc)
end

-- Brings as many jobs as there are tokens to lock them with. Returns them, and when they are fewer: how long the
-- queue is rate limited (ms; 0 it is not), and when to look again (ms; 0 when paused or so, nil nothing is there).
local function spFetch(opts, tokens)
    local jobs, tries = {}, 50 -- jobs that one call may put aside: each costs about ten commands
    local meta = rcall("HMGET", spc.meta, "paused", "concurrency", "max", "duration")
    local free = meta[1] and 0 or meta[2] and tonumber(meta[2]) - rcall("LLEN", spc.active) or #tokens
    local first = rcall("ZRANGE", spc.delayed, "0", "0", "WITHSCORES")[2]
    if first and tonumber(first) < (spc.now + 1) * 0x1000 then spPromote(free <= 0) end
    local limiter = opts["limiter"] or {}
    local limit, duration = tonumber(meta[3] or limiter["max"]), limiter["duration"] or meta[4]
    local limited, again = 0, nil
    opts["lockDuration"] = string.format("%d", opts["lockDuration"])
    while #jobs < #tokens do
        limited = getRateLimitTTL(limit, spc.limiter)
        if limited > 0 or free <= 0 then
            again = 0
            break
        end
        local jobId = tries > 0 and spPop()
        if not jobId then
            -- Many jobs were put aside in this call: the worker is to call again at once.
            again = tries == 0 and tonumber(spc.now) or getNextDelayedTimestamp(spc.delayed)
            break
        end
        local f = spRead(spc.prefix .. jobId)
        local mayRun, before, cancelled = spMayRun(jobId, f)
        if mayRun then
            local token = tokens[#jobs + 1]
            jobs[#jobs + 1] = spPrepare(jobId, f, token, opts, before, cancelled, limit, duration)
            free = free - 1
        else
            tries = tries - 1
        end
    end
    if #jobs > 0 then
        spCountChildren(jobs)
        -- Whoever may write it must not be able to stop this script half-way: the jobs are to fail, with the reason.
        local settings = redis.pcall("HGETALL", spc.prefix .. "settings:runtime")
        if settings["err"] then settings = {"", settings["err"]} end
        if #settings > 0 then spTell(jobs[1], 6, settings) end
        -- Who waits on the marker is woken when there is something to look at: a job, or the time of a delayed one.
        local waits = rcall("LLEN", spc.wait) > 0 or rcall("ZCARD", spc.prioritized) > 0
        if waits or first then
            addBaseMarkerIfNeeded(spc.marker, false)
            spTell(jobs[1], 7, waits and 1 or math.floor(tonumber(first) / 0x1000))
        end
    end
    return jobs, limited, again
end

local function fetchNextJob(waitKey, activeKey, prioritizedKey, eventStreamKey,
    rateLimiterKey, delayedKey, metaKey, pcKey, markerKey, prefix,
    timestamp, opts)

    local sp = opts["sp"] or {}
    spContext(prefix, timestamp, sp)
    if sp["fin"] then spFinish(sp["fin"]) end
    if sp["nf"] then return nil end
    local jobs, limited, again = spFetch(opts, {opts["token"]})
    if jobs[1] then return jobs[1] end
    if again then return {0, 0, limited, again} end
    return nil
end
