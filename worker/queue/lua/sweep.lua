--[[
  Takes or gives back a thread on behalf of the sweeper: as its holder, so that no job starts meanwhile.
  KEYS: lease:<T>
  ARGV: prefix, thread, "sweep:<token>", ms (0: give back), now (ms)
  Returns 1 when taken (or given back), 0 when a job holds the thread or waits for it.
]]
local rcall = redis.call

-- Includes
--- @include "threads"

local holder = rcall("GET", KEYS[1])
spContext(ARGV[1], ARGV[5], {})
if ARGV[4] == "0" then
    if holder ~= ARGV[3] then return 0 end
    rcall("DEL", KEYS[1])
    spWakeHead(ARGV[2], nil, true)
    return 1
end
if holder == ARGV[3] then return 1 end -- this call was made before
if holder and spHolds(KEYS[1], holder) or rcall("EXISTS", ARGV[1] .. "parked:" .. ARGV[2]) == 1 then return 0 end
rcall("SET", KEYS[1], ARGV[3], "PX", ARGV[4])
return 1
