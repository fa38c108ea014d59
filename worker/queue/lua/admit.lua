--[[
  Turns entries of the intake stream into BullMQ jobs: in the stream's order, over all replicas, each once. What
  replicas have taken off the stream and not finished (they died, or are at it) comes first, then what is new. An
  entry is acknowledged first, and only what was acknowledged is added; all of it happens in this one call, so a late
  delivery to another replica finds nothing to do.
  KEYS: stream:jobs, stream:dead, wait, prioritized, delayed, meta, id, events, marker, pc, active, paused
  ARGV: prefix, group, consumer, now (ms), entries at most, largest data of a job (bytes), how many jobs may wait in
    the queue (0: no limit), how many entries may pass beyond that, how many dead letters are kept, "1": take leave
  Returns {admitted, dead letters, of the admitted those beyond the limit, "1" when the limit holds entries back, jobs
  that wait, "1" when there may be more, what is wrong or ""}.
]]
local rcall = redis.call

-- Includes
--- @include "addDelayedJob"
--- @include "addJobInTargetList"
--- @include "addJobWithPriority"
--- @include "entry"
--- @include "getOrSetMaxEvents"
--- @include "isQueuePausedOrMaxed"
--- @include "storeJob"

local bytesMax = 1048576 -- of entries, in one call (and the one that passes it)
local jobsKey, deadKey, prefix, group, me = KEYS[1], KEYS[2], ARGV[1], ARGV[2], ARGV[3]
local now, most, dataMax = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local limit, beyond = tonumber(ARGV[7]), tonumber(ARGV[8])

-- An error in the middle would cost an entry, so what could raise one is looked at before anything is written.
local types = {"stream", "stream", "list", "zset", "zset", "hash", "string", "stream", "zset", "string", "list", "list"}
for i, want in ipairs(types) do
    local is = rcall("TYPE", KEYS[i])["ok"]
    if is ~= want and is ~= "none" then
        local name = string.sub(KEYS[i], #prefix + 1)
        return {0, 0, 0, "", 0, "", name .. " is a " .. is .. " in Redis, not a " .. want}
    end
end

local function pendingOf(...)
    local found = redis.pcall("XPENDING", jobsKey, group, "-", "+", ...)
    if not found["err"] then return found end
    if string.sub(found["err"], 1, 7) ~= "NOGROUP" then error(found["err"]) end
    -- New, or destroyed under us: what is still in the stream was never admitted.
    rcall("XGROUP", "CREATE", jobsKey, group, "0", "MKSTREAM")
    return {}
end

-- Consumers of replicas that are gone, once they own nothing.
local function forgetConsumers()
    for _, c in ipairs(rcall("XINFO", "CONSUMERS", jobsKey, group)) do
        local name, pending = c[2], c[4]
        local gone = name == me and ARGV[10] == "1" or name ~= me and rcall("EXISTS", prefix .. "replica:" .. name) == 0
        if pending == 0 and gone then rcall("XGROUP", "DELCONSUMER", jobsKey, group, name) end
    end
end

local waiting = rcall("LLEN", KEYS[3]) + rcall("ZCARD", KEYS[4]) + rcall("LLEN", KEYS[12])
local admitted, letters, passed, bytes, held = 0, 0, 0, 0, false
local maxEvents, isPausedOrMaxed

local function take(id)
    if rcall("XACK", jobsKey, group, id) == 0 then return false end
    rcall("XDEL", jobsKey, id)
    return true
end

local function bury(id, fields, reason)
    if not take(id) then return end
    local cut = math.min(#fields, 7000)
    if cut < #fields then reason = reason .. " (only its first fields are kept)" end
    rcall("XADD", deadKey, "MAXLEN", "~", ARGV[9], "*", "reason", reason, "entry", id, unpack(fields, 1, cut))
    letters = letters + 1
end

local function add(id, e)
    if not take(id) then return end
    admitted = admitted + 1
    rcall("INCR", KEYS[7])
    if rcall("EXISTS", prefix .. e.id) == 1 then
        rcall("XADD", KEYS[8], "MAXLEN", "~", maxEvents, "*", "event", "duplicated", "jobId", e.id)
        return
    end
    local delay, priority = storeJob(KEYS[8], prefix .. e.id, e.id, e.name, e.data, e.opts, e.timestamp, nil, nil, nil)
    if delay > 0 then
        addDelayedJob(e.id, KEYS[5], KEYS[8], e.timestamp, maxEvents, KEYS[9], delay)
        return
    end
    if limit > 0 and waiting >= limit then passed = passed + 1 end
    waiting = waiting + 1
    if priority > 0 then
        addJobWithPriority(KEYS[9], KEYS[4], priority, e.id, KEYS[10], isPausedOrMaxed)
    else
        addJobInTargetList(KEYS[3], KEYS[9], e.opts["lifo"] and "RPUSH" or "LPUSH", isPausedOrMaxed, e.id)
    end
    rcall("XADD", KEYS[8], "MAXLEN", "~", maxEvents, "*", "event", "waiting", "jobId", e.id)
end

-- Is there room for one more? Counts jobs that wait for a slot; parked and delayed ones are in nobody's way.
local function mayTake()
    if admitted + letters >= most or bytes > bytesMax then return false end
    held = limit > 0 and waiting >= limit and passed >= beyond
    return not held
end

local function judge(id, fields)
    for _, value in ipairs(fields) do bytes = bytes + #value end
    local e, reason = spEntry(id, fields, dataMax, now)
    if e then add(id, e) else bury(id, fields, reason) end
end

local pending = pendingOf(most)
if #pending > 0 or rcall("XLEN", jobsKey) > 0 then
    -- The first write is one that Redis refuses when it is out of memory: then nothing is taken off the stream.
    rcall("INCRBY", KEYS[7], 0)
    maxEvents = getOrSetMaxEvents(KEYS[6])
    isPausedOrMaxed = isQueuePausedOrMaxed(KEYS[6], KEYS[11])
    for _, p in ipairs(pending) do
        if not mayTake() then break end
        local entry = rcall("XRANGE", jobsKey, p[1], p[1])[1]
        if entry then
            judge(p[1], entry[2])
        else
            bury(p[1], {}, "the entry was deleted or trimmed before it was admitted")
        end
    end
    while mayTake() do
        local read = rcall("XREADGROUP", "GROUP", group, me, "COUNT", 1, "STREAMS", jobsKey, ">")
        if not read then break end
        judge(read[1][2][1][1], read[1][2][1][2])
    end
end
forgetConsumers()
held = held and rcall("XLEN", jobsKey) > 0
local more = not held and admitted + letters > 0 and rcall("XLEN", jobsKey) > 0
return {admitted, letters, passed, held and "1" or "", waiting, more and "1" or "", ""}
