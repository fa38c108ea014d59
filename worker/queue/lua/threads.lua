--[[
  Thread leases: at most one job of a thread runs, in the order its jobs were first seen.

  tests/model/sandpiper.pml is the model of this, of claim, reply, wake and the scripts that end a job, and says what
  must hold; these files implement it. A change of one is a change of the other (`make model`).

  Keys of a thread T (prefix is "<prefix>:<queue>:"):
    lease:T   STRING  id of the job that holds the thread (or "sweep:<token>")
    parked:T  ZSET    ids that wait for the thread, scored in the order they were first seen
    thread:T  HASH    claim (ms of the last claim), replica (who made it), back (how manieth the last job was that was
                      sent to the back of wait), through (as how manieth the last of them came through: while that is
                      less, others of the thread that come up follow to the back), ...
    index:parked ZSET threads with parked jobs, scored by the time of the last look at them

  Job hash fields of ours: sp:t (the thread key, found once), sp:run (mark of a delivered run),
  sp:seq (last sequence number of the reply), sp:b (it was sent to the back of wait once: as the how manieth
  of its thread), sp:c (it was cancelled, and is yet to fail), sp:h (cancels that were said until this time, in ms, are
  over for it: it has failed by them, or was retried by hand since).
]]
-- Includes
--- @include "addBaseMarkerIfNeeded"
--- @include "addJobWithPriority"
--- @include "getDelayedScore"
--- @include "getOrSetMaxEvents"

local spKeepMs = "604800000" -- 7 days

-- What every function below needs to know; filled by spContext. (Numbers that Redis gets often are kept as text: it takes
-- long to write a Lua number.)
local spc = {holders = {}}

local function spContext(prefix, now, sp)
    spc.prefix = prefix
    spc.now = now
    spc.events = prefix .. "events"
    spc.wait = prefix .. "wait"
    spc.stalled = prefix .. "stalled"
    spc.limiter = prefix .. "limiter"
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

-- The thread of a job (f: what spRead gave), or nil: no thread, or data that no worker can run (it is claimed and
-- failed). Decoding is bounded and guarded: an error here would stop the queue for everybody.
local function spFindThread(f)
    local text, grouped = f[2], f[3] and string.find(f[3], '"group"', 1, true)
    if text and #text > spc.dataMax then return nil end
    if not grouped and not (text and string.find(text, '"threadId"', 1, true)) then return nil end
    local threadId, workspaceId, groupId
    local ok, data = pcall(cjson.decode, text or "")
    if not ok or type(data) ~= "table" then return nil end
    threadId, workspaceId = spId(data["threadId"]), spId(data["workspaceId"])
    if grouped then
        local fine, opts = pcall(cjson.decode, f[3])
        if fine and type(opts) == "table" and type(opts["group"]) == "table" then
            groupId = spId(opts["group"]["id"])
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
local function spToBack(jobId, known)
    local priority = tonumber(known or rcall("HGET", spc.prefix .. jobId, "priority")) or 0
    if priority == 0 then
        rcall("LPUSH", spc.wait, jobId)
    else
        addJobWithPriority(spc.marker, spc.prioritized, priority, jobId, spc.pc, true)
    end
end

-- Forgets the place of a job in its thread, and the thread among those with parked jobs when it was the last.
local function spForget(thread, jobId)
    local parkedKey = spc.prefix .. "parked:" .. thread
    if rcall("ZREM", parkedKey, jobId) == 1 and rcall("EXISTS", parkedKey) == 0 then
        rcall("ZREM", spc.prefix .. "index:parked", thread)
    end
end

-- Makes sure that the thread's first parked job is on its way to a worker. Returns its id, or nil when no
-- parked job is left. `me` counts as being on its way; so does, unless `sure`, what was woken before: where it is now
-- is a question of a time that grows with the lists, left to the wake pass.
local function spWakeHead(thread, me, sure)
    local parkedKey = spc.prefix .. "parked:" .. thread
    while true do
        local head = rcall("ZRANGE", parkedKey, "0", "0")[1]
        if not head then
            if not me then rcall("ZREM", spc.prefix .. "index:parked", thread) end
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
                rcall("HSET", spc.prefix .. head, "delay", "0")
                rcall("XADD", spc.events, "*", "event", "waiting", "jobId", head, "prev", "delayed")
                addBaseMarkerIfNeeded(spc.marker, false)
                return head
            end
            if not sure or rcall("ZSCORE", spc.prioritized, head) or rcall("LPOS", spc.wait, head)
                or rcall("LPOS", spc.active, head) or rcall("LPOS", spc.paused, head) then
                return head
            end
        end
        spForget(thread, head) -- removed, finished, or moved where no worker takes it
    end
end

-- Remembers the place of a job in its thread; the first look decides.
local function spKeepPlace(thread, jobId)
    local parkedKey = spc.prefix .. "parked:" .. thread
    local last = rcall("ZREVRANGE", parkedKey, "0", "0", "WITHSCORES")
    rcall("ZADD", parkedKey, "NX", (tonumber(last[2]) or 0) + 1, jobId)
    if last[1] then return end
    rcall("PEXPIRE", parkedKey, spKeepMs)
    rcall("ZADD", spc.prefix .. "index:parked", "NX", spc.now, thread)
    rcall("PEXPIRE", spc.prefix .. "index:parked", spKeepMs) -- an obliterated queue leaves nothing for ever
end

-- Takes a job out of the way of others: delayed for BullMQ's eyes.
local function spPark(thread, jobId)
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

-- Sends a job to the back of its line, once, and those of its thread that come up before it after it. (With a
-- priority it keeps its place among the parked instead, for there the line is not one of coming first.) True: the
-- caller is to put it at the back of wait.
local function spTurnBack(thread, jobId, f, before)
    if (tonumber(f[14]) or 0) == 0 then
        local turn = string.format("%d", math.max(tonumber(before[8]) or 0, tonumber(before[9]) or 0) + 1)
        rcall("HSET", spc.prefix .. jobId, "sp:t", thread, "sp:b", turn)
        rcall("HSET", spc.prefix .. "thread:" .. thread, "back", turn)
        return true
    end
    rcall("HSET", spc.prefix .. jobId, "sp:t", thread)
    spKeepPlace(thread, jobId)
    spToBack(jobId, f[14])
    return false
end

-- The thread's record carries its last claim; its life is renewed once an hour.
local function spKeepRecord(threadKey, claimed, turn)
    if turn then
        rcall("HSET", threadKey, "claim", spc.now, "replica", spc.replica, "through", turn)
    else
        rcall("HSET", threadKey, "claim", spc.now, "replica", spc.replica)
    end
    if not claimed or math.floor(claimed / 3600000) ~= math.floor(spc.now / 3600000) then
        rcall("PEXPIRE", threadKey, spKeepMs)
    end
end

-- Was its thread cancelled after it was added? But a job that was started before and is without processedOn has been
-- sent back by hand: whoever did that wants it to run, whatever was cancelled until then.
local function spThreadCancelled(jobId, f, cancel, spare)
    if not cancel or jobId == spare or (tonumber(f[4]) or 0) > tonumber(cancel) then return false end
    local jobKey = spc.prefix .. jobId
    local known = rcall("HMGET", jobKey, "processedOn", "sp:h")
    if (tonumber(known[2]) or 0) >= tonumber(cancel) then return false end
    if known[1] or (tonumber(f[6]) or 0) == 0 then return true end
    rcall("HSET", jobKey, "sp:h", cancel)
    return false
end

-- Who holds the thread: what was seen for many, else (`ask`) asked; false nobody, nil when it was not asked.
local function spHolder(thread, leaseKey, ask)
    if ask and spc.lookAhead then spc.lookAhead() end
    local holder = spc.holders[thread]
    if holder == nil and ask then holder = rcall("GET", leaseKey) end
    return holder
end

-- Decides about a job (f: what spRead gave, with the thread in it; `found`: the thread is not yet in the job's hash;
-- `inWait`: how many of those that are judged are in wait yet; `others`: more jobs are known to wait). True: it may run
-- (and holds its thread, if it has one); the second value is the thread's record as the claim found it, the third: it was
-- cancelled. False: it was put elsewhere, or, when the second value is true, is to be put at the back of wait.
local function spMayRun(jobId, f, found, inWait, others)
    local jobKey, thread = spc.prefix .. jobId, f[7]
    -- Only to be failed: needs no lease. A mark wins, for then a run may still be going.
    local marked = f[8] and f[8] ~= ""
    if f[15] and not marked then return true, nil, true end -- whoever cancelled it died before it had failed
    if not thread or f[10] and not marked then return true end

    local leaseKey, threadKey = spc.prefix .. "lease:" .. thread, spc.prefix .. "thread:" .. thread
    local before = rcall("HMGET", threadKey, "replica", "sandbox", "creation", "actor", "claim", "cancel", "spare",
        "back", "through", "unsettled")
    local claimed = tonumber(before[5])
    -- Only to be failed, too.
    if not marked and spThreadCancelled(jobId, f, before[6], before[7]) then return true, before, true end
    -- Who holds the lease was started with it: of the many that were not, nobody asks.
    local holder = spHolder(thread, leaseKey, f[6])
    -- (A prioritized job comes up when wait is empty: that one is parked then, and this one has a place behind it.)
    if holder ~= jobId and not f[13] and (tonumber(f[14]) or 0) == 0
        and (tonumber(before[8]) or 0) > (tonumber(before[9]) or 0) then
        spc.holders[thread] = nil
        return false, spTurnBack(thread, jobId, f, before)
    end
    if holder == nil then holder = spHolder(thread, leaseKey, true) end
    local unparked = spc.holders[thread] ~= nil and spc.noneParked
    spc.holders[thread] = nil -- what follows may change it
    local head = holder == jobId and jobId
    if not head then
        local held = holder and spHolds(leaseKey, holder)
        head = not held and not unparked and spWakeHead(thread, jobId)
        if held or head and head ~= jobId then
            if found then rcall("HSET", jobKey, "sp:t", thread) end
            if held and f[1] == "release" then spForce(thread, jobId, f[4]) end
            spPark(thread, jobId)
            return false
        end
        -- Fairness: ready before its thread's last claim, so others have waited longer; once to the back.
        if not head and not f[13] and claimed and (tonumber(f[4]) or 0) < claimed
            and (others or rcall("LLEN", spc.wait) > inWait or rcall("ZCARD", spc.prioritized) > 0) then
            return false, spTurnBack(thread, jobId, f, before)
        end
    end
    rcall("SET", leaseKey, jobId, "PX", spKeepMs)
    if head then spForget(thread, jobId) end
    spKeepRecord(threadKey, claimed, f[13])
    return true, before
end

-- Gives the thread back if this job holds it, and sends the next job of a free thread on its way.
local function spRelease(thread, jobId)
    local leaseKey, parkedKey = spc.prefix .. "lease:" .. thread, spc.prefix .. "parked:" .. thread
    local holder = rcall("GET", leaseKey)
    if holder == jobId then
        rcall("DEL", leaseKey)
        holder = nil
    end
    if rcall("EXISTS", parkedKey) == 0 then return end
    spForget(thread, jobId)
    if not holder then spWakeHead(thread, nil) end
end
