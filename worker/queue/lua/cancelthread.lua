--[[
  Cancels what a thread has waiting: jobs added until now fail as cancelled when they are claimed; those that are
  parked, or wait for a retry, are named so that they can be cancelled at once.
  KEYS: thread:<T>, parked:<T>, lease:<T>
  ARGV: now (ms), jobs added later than this (ms) are spared, id of a job that is spared, or ""
  Returns ids.
]]
local rcall = redis.call

rcall("HSET", KEYS[1], "cancel", ARGV[2], "spare", ARGV[3])
rcall("PEXPIRE", KEYS[1], 604800000)
local ids = rcall("ZRANGE", KEYS[2], 0, -1)
local holder = rcall("GET", KEYS[3])
if holder then ids[#ids + 1] = holder end
local named = {}
for _, id in ipairs(ids) do
    if id ~= ARGV[3] then named[#named + 1] = id end
end
return named
