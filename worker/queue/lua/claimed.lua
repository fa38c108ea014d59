--[[
  What of a job's hash a claim brings, and the steps that make a job run: BullMQ's prepareJobForProcessing with as
  few commands as its effects allow, for it is on the path of every job.
]]

-- The fields of a claimed job, in the order in which claim.c reads them; the last three are for us alone.
local function spRead(jobKey)
    local f = rcall("HMGET", jobKey, "name", "data", "opts", "timestamp", "atm", "ats", "sp:t", "sp:run", "sp:seq",
        "defa", "stacktrace", "rjk", "sp:b", "priority", "sp:c")
    if f[13] == "" then f[13] = false end -- it came through
    return f
end

-- A job's elements after its id are left out at the end of it where there is nothing to tell.
local function spTell(job, i, value)
    for k = 3, i - 1 do job[k] = job[k] or 0 end
    job[i] = value
end

-- f: what spRead gave, with the thread in it; found: that is not in the hash yet; before: the record of its thread as the
-- claim found it; limit, duration: of the rate limiter.
local function spPrepare(jobId, f, found, token, opts, before, cancelled, limit, duration)
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
    local fields = {"processedOn", spc.now, "ats", started}
    local function set(field, value) fields[#fields + 1], fields[#fields + 2] = field, value end
    if opts["name"] then set("pb", opts["name"]) end
    if f[7] and found then set("sp:t", f[7]) end
    if f[13] then set("sp:b", "") end
    rcall("HSET", jobKey, unpack(fields))
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
