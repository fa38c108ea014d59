--[[
  What the queue holds, kept in a hash for redis-cli, scalers and the replicas' metrics. Counted by whoever comes when
  the hash has become old; everybody gets what is in it.
  KEYS: stats:queue
  ARGV: prefix, age at which it is counted anew (ms), life of the hash (ms)
  Returns the hash.
]]
local rcall = redis.call
local prefix = ARGV[1]
local time = rcall("TIME")
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local maxThreads = 500

local at = tonumber(rcall("HGET", KEYS[1], "at"))
if at and now - at >= 0 and now - at < tonumber(ARGV[2]) then return rcall("HGETALL", KEYS[1]) end

-- Each thread's parked jobs; beyond maxThreads the rest is estimated by these.
local function parkedJobs(threads)
    local some, count = rcall("ZRANGE", prefix .. "index:parked", 0, maxThreads - 1), 0
    for _, thread in ipairs(some) do count = count + rcall("ZCARD", prefix .. "parked:" .. thread) end
    if threads > #some then count = math.floor(count / #some * threads) end
    return count
end

-- Since when the job can have been runnable: not before its delay, its last start or its thread's last claim.
local function runnableSince(id)
    local f = rcall("HMGET", prefix .. id, "timestamp", "processedOn", "sp:t", "opts")
    local since = tonumber(f[1])
    if not since then return nil end
    if f[4] and string.find(f[4], '"delay"', 1, true) and #f[4] < 65536 then
        local fine, opts = pcall(cjson.decode, f[4])
        if fine and type(opts) == "table" then since = since + (tonumber(opts["delay"]) or 0) end
    end
    since = math.max(since, tonumber(f[2]) or 0)
    if f[3] then since = math.max(since, tonumber(rcall("HGET", prefix .. "thread:" .. f[3], "claim")) or 0) end
    return math.min(since, now)
end

local delayedKey = prefix .. "delayed"
local dueScore = string.format("%.0f", (now + 1) * 4096 - 1)
local waiting, prioritized = rcall("LLEN", prefix .. "wait"), rcall("ZCARD", prefix .. "prioritized")
local due, threads = rcall("ZCOUNT", delayedKey, 0, dueScore), rcall("ZCARD", prefix .. "index:parked")
local parked, delayed = parkedJobs(threads), rcall("ZCARD", delayedKey)
local paused = rcall("HEXISTS", prefix .. "meta", "paused")

local oldest
local firsts = {
    rcall("LINDEX", prefix .. "wait", -1), rcall("ZRANGE", prefix .. "prioritized", 0, 0)[1],
    due > 0 and rcall("ZRANGE", delayedKey, 0, 0)[1],
}
for i = 1, 3 do
    local since = firsts[i] and runnableSince(firsts[i])
    if since and (not oldest or since < oldest) then oldest = since end
end
local runnable = paused == 0 and waiting + prioritized + due or 0
local function int(n) return string.format("%.0f", n) end

rcall("DEL", KEYS[1])
rcall("HSET", KEYS[1], "at", int(now), "runnable", int(runnable),
    "oldestRunnableMs", oldest and paused == 0 and int(now - oldest) or "0",
    "waiting", int(waiting), "prioritized", int(prioritized), "due", int(due),
    "delayed", int(math.max(0, delayed - due - parked)), "parked", int(parked), "parkedThreads", int(threads),
    "running", int(rcall("LLEN", prefix .. "active")), "paused", int(paused),
    "replicas", int(rcall("ZCARD", prefix .. "index:replicas")),
    "streamEntries", int(rcall("XLEN", prefix .. "stream:jobs")))
rcall("PEXPIRE", KEYS[1], ARGV[3])
return rcall("HGETALL", KEYS[1])
