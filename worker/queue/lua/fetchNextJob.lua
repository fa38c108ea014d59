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
        rcall("HDEL", jobKey, "sp:run", "sp:b")
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
        local called = pending > 0 and rcall("EXISTS", spc.prefix .. jobs[i][2] .. ":failed") == 1
        if pending > 0 and not called then spTell(jobs[i], 4, pending) end
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

-- The next ids, at most `most`, the next one first; the second value: they are in wait yet, not in active.
local function spNext(most)
    local ids = {}
    if most > 1 then
        ids = rcall("LRANGE", spc.wait, string.format("%d", -most), "-1")
        for i = 1, #ids / 2 do ids[i], ids[#ids + 1 - i] = ids[#ids + 1 - i], ids[i] end
        if #ids > 0 then return ids, true end
    end
    return {rcall("RPOPLPUSH", spc.wait, spc.active)
        or moveJobFromPrioritizedToActive(spc.prioritized, spc.active, spc.pc)}, false
end

-- What judging the jobs from the `at`th on asks of their threads, in two commands; for each thread it holds until the
-- first job of it is judged.
local function spLookAhead(reads, at)
    local leases, parked, of = {}, {}, {}
    for i = at, #reads do
        local thread = reads[i][7]
        if thread then
            of[#of + 1] = thread
            leases[#of] = spc.prefix .. "lease:" .. thread
            parked[#of] = spc.prefix .. "parked:" .. thread
        end
    end
    spc.noneParked = rcall("EXISTS", unpack(parked)) == 0
    for i, holder in ipairs(rcall("MGET", unpack(leases))) do spc.holders[of[i]] = holder end
end

-- Moves the first `seen` of ids that spNext gave from wait: what runs to active, what was turned back to the end.
local function spLeaveWait(seen, runs, back)
    if #runs > 0 then rcall("LPUSH", spc.active, unpack(runs)) end
    rcall("LTRIM", spc.wait, "0", string.format("%d", -seen - 1))
    if #back > 0 then rcall("LPUSH", spc.wait, unpack(back)) end
end

-- Goes through ids that spNext gave, until `room` of them may run: `prepare` makes them run, and what it gives of them
-- goes to `jobs`. Returns how many were put aside instead, and the error of a job that cannot be judged (a key of it is
-- of another type): in a call that only claims it is in active then, where it stalls; else it is the next to be claimed.
local function spStart(ids, inWait, room, jobs, prepare)
    local reads, found, runs, back, seen, wrong = {}, {}, {}, {}, 0, nil
    spc.holders = {}
    spc.lookAhead = #ids > 1 and function()
        spc.lookAhead = nil
        spLookAhead(reads, seen)
    end
    local function read(i)
        local f = spRead(spc.prefix .. ids[i])
        found[i] = not f[7]
        f[7] = f[7] or spFindThread(f) or false
        reads[i] = f
    end
    local function judge(i)
        local jobId = ids[i]
        if string.sub(jobId, 1, 2) == "0:" then return end -- a marker that BullMQ before 5.0 left in the list
        if not reads[i] then read(i) end
        local f = reads[i]
        local mayRun, before, cancelled = spMayRun(jobId, f, found[i], inWait and #ids or 0, i < #ids or #back > 0)
        if mayRun then
            jobs[#jobs + 1] = prepare(jobId, f, found[i], before, cancelled)
            runs[#runs + 1] = jobId
        elseif before then
            back[#back + 1] = jobId
        end
    end
    for i = 1, #ids do
        if not pcall(read, i) then break end -- it says why when its turn has come
    end
    while seen < #ids and #runs < room and not wrong do
        seen = seen + 1
        local fine, err = pcall(judge, seen)
        wrong = not fine and err
    end
    if wrong and spc.alone then
        runs[1] = ids[seen]
    elseif wrong then
        seen = seen - 1
    end
    if inWait then
        spLeaveWait(seen, runs, back)
    elseif #runs == 0 and not wrong and #back == 0 then
        rcall("LREM", spc.active, "1", ids[1])
    elseif #runs == 0 then
        rcall("LMOVE", spc.active, spc.wait, "LEFT", wrong and "RIGHT" or "LEFT")
    end
    return seen - #runs, wrong
end

-- Brings as many jobs as there are tokens to lock them with. Returns them, and when they are fewer: how long the
-- queue is rate limited (ms; 0 it is not), and when to look again (ms; 0 when paused or so, nil nothing is there).
local function spFetch(opts, tokens)
    local jobs, aside, tries = {}, 0, 50 -- jobs that one call may put aside: each costs about six commands
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
        -- Where many are put aside, more are looked at. Under a rate limit each start is counted before the next.
        local room = math.min(#tokens - #jobs, free)
        local ids, inWait = {}, false
        if aside < tries then ids, inWait = spNext(limit and 1 or math.min(room + aside, tries - aside)) end
        if #ids == 0 then
            -- Many jobs were put aside in this call: the worker is to call again at once.
            again = aside >= tries and tonumber(spc.now) or getNextDelayedTimestamp(spc.delayed)
            break
        end
        local begun = #jobs
        local put, wrong = spStart(ids, inWait, room, jobs, function(jobId, f, found, before, cancelled)
            return spPrepare(jobId, f, found, tokens[#jobs + 1], opts, before, cancelled, limit, duration)
        end)
        if wrong and spc.alone then error(wrong, 0) end
        if wrong then
            again = tonumber(spc.now)
            break
        end
        aside, free = aside + put, free - (#jobs - begun)
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
