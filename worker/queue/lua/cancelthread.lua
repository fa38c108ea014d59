--[[
  Cancels what a thread has waiting: jobs added until then fail as cancelled when they are claimed; those that are
  parked, wait for a retry or hold the thread are named so that they can be cancelled at once. It may come late: from a
  replica that has just started and reads what was said within the hour.
  KEYS: thread:<T>, parked:<T>, lease:<T>
  ARGV: prefix, jobs added later than this (ms) are spared, id of a job that is spared, or "", when it was
    said (ms)
  Returns the last argument and ids.
]]
local rcall = redis.call

local before = tonumber(ARGV[2])
if (tonumber(rcall("HGET", KEYS[1], "cancel")) or 0) < before then
    rcall("HSET", KEYS[1], "cancel", ARGV[2], "spare", ARGV[3])
    rcall("PEXPIRE", KEYS[1], 604800000)
end
local ids = rcall("ZRANGE", KEYS[2], 0, -1)
local holder = rcall("GET", KEYS[3])
if holder then ids[#ids + 1] = holder end
local named = {ARGV[4]}
for _, id in ipairs(ids) do
    local f = id ~= ARGV[3] and rcall("HMGET", ARGV[1] .. id, "timestamp", "sp:h")
    if f and (tonumber(f[1]) or 0) <= before and (tonumber(f[2]) or 0) < before then named[#named + 1] = id end
end
return named
