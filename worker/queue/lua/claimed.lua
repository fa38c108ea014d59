--[[
  What of a job's hash a claim brings, and the steps that make a job run: BullMQ's prepareJobForProcessing with as
  few commands as its effects allow, for it is on the path of every job.
]]

-- The fields of a claimed job, in the order in which claim.c reads them; the last three are for us alone.
local function spRead(jobKey)
    return rcall("HMGET", jobKey, "name", "data", "opts", "timestamp", "atm", "ats", "sp:t", "sp:run", "sp:seq",
        "defa", "stacktrace", "rjk", "sp:b", "priority", "sp:c")
end

-- A job's elements after its id are left out at the end of it where there is nothing to tell.
local function spTell(job, i, value)
    for k = 3, i - 1 do job[k] = job[k] or 0 end
    job[i] = value
end

-- The job is in active already. f: what spRead gave, with the thread in it; before: the record of its thread as the
-- claim found it; limit, duration: of the rate limiter.
local function spPrepare(jobId, f, token, opts, before, cancelled, limit, duration)
    local jobKey = spc.prefix .. jobId
    if limit and not f[10] then
        if rcall("INCR", spc.limiter) == 1 then
            rcall("PEXPIRE", spc.limiter, math.floor(math.abs(duration)))
        end
    end
    rcall("SET", jobKey .. ":lock", token, "PX", opts["lockDuration"])
    rcall("XADD", spc.events, "*", "event", "active", "jobId", jobId, "prev", "waiting")
    local started = string.format("%d", (tonumber(f[6]) or 0) + 1)
    f[6] = started
    local name, thread = opts["name"], f[7]
    if name and thread then
        rcall("HSET", jobKey, "processedOn", spc.now, "pb", name, "ats", started, "sp:t", thread)
    elseif name then
        rcall("HSET", jobKey, "processedOn", spc.now, "pb", name, "ats", started)
    elseif thread then
        rcall("HSET", jobKey, "processedOn", spc.now, "ats", started, "sp:t", thread)
    else
        rcall("HSET", jobKey, "processedOn", spc.now, "ats", started)
    end
    if f[13] then rcall("HDEL", jobKey, "sp:b") end
    local last = 15
    while last > 12 or not f[last] do
        f[last] = nil
        last = last - 1
    end
    local job = {f, jobId}
    if before then spTell(job, 3, before) end
    if cancelled then spTell(job, 5, 1) end
    return job
end
