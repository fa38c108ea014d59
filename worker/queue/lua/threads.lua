--[[
  Thread leases: at most one job of a thread runs, in the order its jobs were first seen.

  Keys of a thread T (prefix is "<prefix>:<queue>:"):
    lease:T   STRING  id of the job that holds the thread (or "sweep:<token>")
    parked:T  ZSET    ids that wait for the thread, scored in the order they were first seen
    thread:T  HASH    claim (ms of the last claim), replica (who made it), ...
    index:parked ZSET threads with parked jobs, scored by the time of the last look at them

  Job hash fields of ours: sp:t (the thread key, found once), sp:run (mark of a delivered run),
  sp:seq (last sequence number of the reply).
]]
-- Includes
--- @include "addBaseMarkerIfNeeded"
--- @include "addJobWithPriority"
--- @include "getDelayedScore"
--- @include "getOrSetMaxEvents"

local spKeepMs = 604800000 -- 7 days

-- What every function below needs to know; filled by spContext.
local spc = {}

local function spContext(prefix, now, sp)
    spc.prefix = prefix
    spc.now = now
    spc.events = prefix .. "events"
    spc.wait = prefix .. "wait"
    spc.active = prefix .. "active"
    spc.prioritized = prefix .. "prioritized"
    spc.delayed = prefix .. "delayed"
    spc.paused = prefix .. "paused"
    spc.marker = prefix .. "marker"
    spc.pc = prefix .. "pc"
    spc.meta = prefix .. "meta"
    spc.horizon = sp["hz"] or 3600000
    spc.dataMax = sp["dm"] or 1048576
    spc.replica = sp["rid"] or ""
end

local function spEncode(s)
    return (string.gsub(s, "[%%:]", { ["%"] = "%25", [":"] = "%3A" }))
end

-- A JSON member that should be an id: the string, nil when absent (or null, or ""), false when it is no string.
local function spId(v)
    if v == nil or v == cjson.null or v == "" then return nil end
    if type(v) ~= "string" then return false end
    return v
end

-- The thread of a job, or nil: no thread, or data that no worker can run (it is claimed and failed).
-- Decoding is bounded and guarded: an error here would stop the queue for everybody.
local function spFindThread(jobKey)
    if rcall("HSTRLEN", jobKey, "data") > spc.dataMax then return nil end
    local f = rcall("HMGET", jobKey, "data", "opts")
    local threadId, workspaceId, groupId
    if f[1] and string.find(f[1], '"threadId"', 1, true) or f[2] and string.find(f[2], '"group"', 1, true) then
        local ok, data = pcall(cjson.decode, f[1] or "")
        if not ok or type(data) ~= "table" then return nil end
        threadId, workspaceId = spId(data["threadId"]), spId(data["workspaceId"])
        if f[2] and string.find(f[2], '"group"', 1, true) then
            local fine, opts = pcall(cjson.decode, f[2])
            if fine and type(opts) == "table" and type(opts["group"]) == "table" then
                groupId = spId(opts["group"]["id"])
            end
        end
    end
    if threadId == false or workspaceId == false or groupId == false then return nil end
    if threadId and groupId and threadId ~= groupId then return nil end
    threadId = threadId or groupId
    if not threadId then return nil end
    return spEncode(workspaceId or "") .. ":" .. spEncode(threadId)
end

-- Does the job (or sweep) named in a lease still hold the thread? While it is locked, or will run again.
local function spHolds(leaseKey, holder)
    local f = rcall("HMGET", spc.prefix .. holder, "timestamp", "finishedOn")
    if not f[1] then
        return string.sub(holder, 1, 6) == "sweep:" and rcall("PTTL", leaseKey) > 0
    end
    if f[2] then return false end
    return rcall("EXISTS", spc.prefix .. holder .. ":lock") == 1
        or rcall("ZSCORE", spc.delayed, holder)
        or rcall("ZSCORE", spc.prioritized, holder)
        or rcall("LPOS", spc.active, holder)
        or rcall("LPOS", spc.wait, holder)
        or rcall("LPOS", spc.paused, holder)
        or false
end

-- Puts a ready job at the back of the line, whichever line its priority means.
local function spToBack(jobId)
    local priority = tonumber(rcall("HGET", spc.prefix .. jobId, "priority")) or 0
    if priority == 0 then
        rcall("LPUSH", spc.wait, jobId)
    else
        addJobWithPriority(spc.marker, spc.prioritized, priority, jobId, spc.pc, true)
    end
end

-- Makes sure that the thread's first parked job is on its way to a worker. Returns its id, or nil when no
-- parked job is left. `me` counts as being on its way.
local function spWakeHead(thread, me)
    local parkedKey = spc.prefix .. "parked:" .. thread
    while true do
        local head = rcall("ZRANGE", parkedKey, 0, 0)[1]
        if not head then
            rcall("ZREM", spc.prefix .. "index:parked", thread)
            return nil
        end
        if head == me then return head end
        local f = rcall("HMGET", spc.prefix .. head, "timestamp", "finishedOn")
        if f[1] and not f[2] then
            -- A paused queue is left as it is: BullMQ 5 throws away what is pushed to wait meanwhile. The wake
            -- pass does it after the pause.
            if rcall("HEXISTS", spc.meta, "paused") == 1 then return head end
            if rcall("ZREM", spc.delayed, head) == 1 then
                spToBack(head)
                rcall("HSET", spc.prefix .. head, "delay", 0)
                rcall("XADD", spc.events, "*", "event", "waiting", "jobId", head, "prev", "delayed")
                addBaseMarkerIfNeeded(spc.marker, false)
                return head
            end
            if rcall("ZSCORE", spc.prioritized, head) or rcall("LPOS", spc.wait, head)
                or rcall("LPOS", spc.active, head) or rcall("LPOS", spc.paused, head) then
                return head
            end
        end
        rcall("ZREM", parkedKey, head) -- removed, finished, or moved where no worker takes it
    end
end

-- Remembers the place of a job in its thread; the first look decides.
local function spKeepPlace(thread, jobId)
    local parkedKey = spc.prefix .. "parked:" .. thread
    local last = rcall("ZREVRANGE", parkedKey, 0, 0, "WITHSCORES")
    rcall("ZADD", parkedKey, "NX", (tonumber(last[2]) or 0) + 1, jobId)
    rcall("PEXPIRE", parkedKey, spKeepMs)
    rcall("ZADD", spc.prefix .. "index:parked", "NX", spc.now, thread)
end

-- Takes a job out of the way of others (it was just put into active): delayed for BullMQ's eyes.
local function spPark(thread, jobId)
    rcall("LREM", spc.active, 1, jobId)
    spKeepPlace(thread, jobId)
    local score, due = getDelayedScore(spc.delayed, spc.now, spc.horizon)
    rcall("ZADD", spc.delayed, score, jobId)
    rcall("HSET", spc.prefix .. jobId, "delay", spc.horizon)
    rcall("XADD", spc.events, "MAXLEN", "~", getOrSetMaxEvents(spc.meta), "*", "event", "delayed",
        "jobId", jobId, "delay", due)
end

-- A release with `force` that has to wait cancels what is before it in its thread.
local function spForce(thread, jobId, timestamp)
    if rcall("ZSCORE", spc.prefix .. "parked:" .. thread, jobId) then return end -- said before
    local ok, data = pcall(cjson.decode, rcall("HGET", spc.prefix .. jobId, "data") or "")
    if ok and type(data) == "table" and data["force"] == true then
        rcall("XADD", spc.prefix .. "stream:control", "MAXLEN", "~", 10000, "*", "cancel-thread", thread,
            "before", timestamp, "spare", jobId)
    end
end

-- Decides about a job that was just put into active. True: it may run (and holds its thread, if it has
-- one); the second value is the thread's record as the claim found it, the third: it was cancelled. False: it was put elsewhere.
local function spMayRun(jobId)
    local jobKey = spc.prefix .. jobId
    local f = rcall("HMGET", jobKey, "sp:t", "defa", "sp:run", "timestamp", "name")
    local thread = f[1] or spFindThread(jobKey)
    if not thread then return true end
    if not f[1] then rcall("HSET", jobKey, "sp:t", thread) end
    -- Only to be failed: needs no lease. A mark wins, for then a run may still be going.
    if f[2] and (not f[3] or f[3] == "") then return true end

    local leaseKey = spc.prefix .. "lease:" .. thread
    local threadKey = spc.prefix .. "thread:" .. thread
    local holder = rcall("GET", leaseKey)
    local before = rcall("HMGET", threadKey, "claim", "replica", "sandbox", "creation", "actor",
        "cancel", "spare")
    -- Its thread was cancelled after it was added: only to be failed, too.
    if before[6] and (not f[3] or f[3] == "") and tonumber(f[4]) <= tonumber(before[6]) and jobId ~= before[7] then
        return true, before, true
    end
    if holder ~= jobId then
        if holder and spHolds(leaseKey, holder) then
            if f[5] == "release" then spForce(thread, jobId, f[4]) end
            spPark(thread, jobId)
            return false
        end
        local head = spWakeHead(thread, jobId)
        if head and head ~= jobId then
            spPark(thread, jobId)
            return false
        end
        -- Fairness: ready before its thread's last claim, so others have waited longer; once to the back.
        if not head and before[1] and (tonumber(f[4]) or 0) < tonumber(before[1])
            and (rcall("LLEN", spc.wait) > 0 or rcall("ZCARD", spc.prioritized) > 0) then
            rcall("LREM", spc.active, 1, jobId)
            spKeepPlace(thread, jobId)
            spToBack(jobId)
            return false
        end
        rcall("SET", leaseKey, jobId)
    end
    rcall("PEXPIRE", leaseKey, spKeepMs)
    if rcall("ZREM", spc.prefix .. "parked:" .. thread, jobId) == 1
        and rcall("EXISTS", spc.prefix .. "parked:" .. thread) == 0 then
        rcall("ZREM", spc.prefix .. "index:parked", thread)
    end
    rcall("HSET", threadKey, "claim", spc.now, "replica", spc.replica)
    rcall("PEXPIRE", threadKey, spKeepMs)
    return true, before
end

-- Gives the thread back if this job holds it, and sends the next job of a free thread on its way.
local function spRelease(thread, jobId)
    local leaseKey = spc.prefix .. "lease:" .. thread
    local holder = rcall("GET", leaseKey)
    if holder == jobId then
        rcall("DEL", leaseKey)
        holder = nil
    end
    rcall("ZREM", spc.prefix .. "parked:" .. thread, jobId)
    if not holder then spWakeHead(thread, nil) end
end
