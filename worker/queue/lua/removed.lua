--[[
  The last word for a job that was removed while it ran: one `done`, if its stream ends with our own entry.
  A lock that is still ours goes with it, so that the stalled pass does not bring back a ghost.
  KEYS: <job>:lock, <job>, <prefix>reply:<job>, active, stalled
  ARGV: ttl (ms), seq of our last stored entry, message, token, job id
  Returns 1 when it was written, else 0.
]]
local rcall = redis.call

-- Includes
--- @include "replies"

local lock = rcall("GET", KEYS[1])
if rcall("EXISTS", KEYS[2]) == 1 or lock and lock ~= ARGV[4] then return 0 end
rcall("DEL", KEYS[1])
rcall("LREM", KEYS[4], 1, ARGV[5])
rcall("SREM", KEYS[5], ARGV[5])
if ARGV[3] == "" then return 0 end
local last = rcall("XREVRANGE", KEYS[3], "+", "-", "COUNT", 1)[1]
if not last or last[1] ~= ARGV[2] .. "-0" then return 0 end
local err = spAppend(KEYS[3], tonumber(ARGV[2]) + 1, {ARGV[3]}, ARGV[1])
if err then return err end
return 1
