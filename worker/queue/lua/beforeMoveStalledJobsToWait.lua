--[[
  Goes around BullMQ's stalled pass.
  When no pass and no renewal reached Redis for most of a lock's life, Redis was away or frozen, and locks have expired
  of workers that are well: each gets a lock's life to renew them.
  The pass looks at every active job; so that it does not block Redis where there are very many, BullMQ's text sees a
  part of them in each call: first what was marked by the pass before is looked at, then the marks are made anew.
  ARGV[5]: lock duration (ms)   ARGV[6]: where the pass goes on, as the call before said; "" it begins
  Returns {ids that are back in wait, where it goes on or ""}
]]
local prefix, from = ARGV[2], ARGV[6]

if from == "" then
    local time = redis.call("TIME")
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    local last = tonumber(redis.call("GET", prefix .. "turn:pulse")) or now
    redis.call("SET", prefix .. "turn:pulse", string.format("%d", now), "PX", 604800000)
    if now - last > ARGV[5] * 2 / 3 then redis.call("SET", prefix .. "turn:hold", 1, "PX", ARGV[5]) end
    if redis.call("EXISTS", prefix .. "turn:hold") == 1 then return {{}, ""} end
end

local spActive = redis.call("LLEN", KEYS[3])
local spMarks = 2000 -- made in a call
local spLooks = math.max(1, math.floor(200000 / (spActive + 400))) -- at jobs without a lock: each is searched in active
local spNext = ""

-- The jobs to look at now: of those marked before, as many as a call may.
local function spSuspects()
    local suspects = {}
    if tonumber(from) then return suspects end
    local marked = redis.call("SPOP", KEYS[1], 500)
    for i, jobId in ipairs(marked) do
        if redis.call("EXISTS", prefix .. jobId .. ":lock") == 0 then
            if #suspects == spLooks then
                redis.call("SADD", KEYS[1], unpack(marked, i))
                break
            end
            suspects[#suspects + 1] = jobId
        end
    end
    if redis.call("EXISTS", KEYS[1]) == 1 then spNext = "looking" end
    return suspects
end

-- The jobs to mark now, from the old end of active: new ones, at the other, do not move them.
local function spWindow()
    if spNext ~= "" then return {} end
    local at = tonumber(from) or 0
    if at + spMarks < spActive then spNext = string.format("%d", at + spMarks) end
    return redis.call("LRANGE", KEYS[3], -at - spMarks, -at - 1)
end

local function spPass()
    local redis = { call = function(command, key, ...)
        if key == KEYS[4] and from ~= "" then return 0 end -- its guard is this pass's own
        if key == KEYS[1] and command == "SMEMBERS" then return spSuspects() end
        if key == KEYS[1] and command == "DEL" then return 0 end
        if key == KEYS[3] and command == "LRANGE" then return spWindow() end
        return redis.call(command, key, ...)
    end }
--- @stock
end

local spStalled = spPass()
return {spStalled, spNext}
