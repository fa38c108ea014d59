--[[
  Appends reply messages of running jobs, each job's fenced by its lock token, and (with the first) marks the run: then
  the lock also begins a new life, so that the worker knows until when the code may be delivered. The mark implements
  `set_mark` of tests/model/sandpiper.pml, and the fence its `fenced`.
  KEYS: active
  ARGV: prefix, life of a lock (ms), then for each job: id, token, ttl of the reply (ms), mark or "", first seq (0:
    publish only, a heartbeat), how many messages, message ...
  Returns for each job 0; -1 no job; -2 no lock; -6 the lock is another's; -7 Redis does not take its messages. An
  error that passes (spPasses) is that of the whole call: it can be made again.
]]
local rcall = redis.call

-- Includes
--- @include "replies"
--- @include "revive"

local prefix, first, locks = ARGV[1], {}, {}
local starts, olds = {}, {} -- of the jobs that are marked: the job, its reply
local at = 3
while ARGV[at] do
    first[#first + 1] = at
    locks[#first] = prefix .. ARGV[at] .. ":lock"
    if ARGV[at + 3] ~= "" then
        starts[#starts + 1] = prefix .. ARGV[at]
        olds[#starts] = prefix .. "reply:" .. ARGV[at]
    end
    at = at + 6 + ARGV[at + 5]
end
local held = rcall("MGET", unpack(locks))
-- All of them are there and have said nothing yet, as nearly always: then nobody asks each.
local startsAreNew = #starts > 1 and rcall("EXISTS", unpack(olds)) == 0 and rcall("EXISTS", unpack(starts)) == #starts

-- What is to be said of one job; its code, or the error of a call that should be made again.
local function spSay(lock, i)
    local jobId, token, mark = ARGV[i], ARGV[i + 1], ARGV[i + 3]
    local seq, count = tonumber(ARGV[i + 4]), tonumber(ARGV[i + 5])
    local jobKey, replyKey = prefix .. jobId, prefix .. "reply:" .. jobId
    local isNew = startsAreNew and mark ~= ""
    local f = isNew or rcall("HMGET", jobKey, "sp:seq", "timestamp")
    if not isNew and not f[2] and rcall("EXISTS", jobKey) == 0 then return -1 end
    if not lock and not spRevive(jobKey, KEYS[1], jobId, token, 5000) then return -2 end
    if lock and lock ~= token then return -6 end
    if seq == 0 then
        for k = 1, count do rcall("PUBLISH", replyKey, ARGV[i + 5 + k]) end
    elseif count > 0 then
        -- No number kept: nothing was said since the job's last `done`, so an older stream is history.
        if not isNew and not f[1] then rcall("DEL", replyKey) end
        local err = spAppend(replyKey, seq, {unpack(ARGV, i + 6, i + 5 + count)}, ARGV[i + 2])
        if err then return spPasses(err) and err or -7 end
        local last = string.format("%d", seq + count - 1)
        if mark == "" then
            rcall("HSET", jobKey, "sp:seq", last)
        else
            rcall("HSET", jobKey, "sp:seq", last, "sp:run", mark)
        end
    elseif mark ~= "" then
        rcall("HSET", jobKey, "sp:run", mark)
    end
    if mark ~= "" then rcall("PEXPIRE", jobKey .. ":lock", ARGV[2]) end
    return 0
end

local codes = {}
for n, i in ipairs(first) do
    codes[n] = spSay(held[n], i)
    if type(codes[n]) == "table" then return codes[n] end
end
return codes
