--[[
  The last word for a job that was removed while it ran: one `done`, if its stream ends with our own entry.
  KEYS: <job>:lock, <job>, <prefix>reply:<job>
  ARGV: ttl (ms), seq of our last stored entry, message
  Returns 1 when it was written, else 0.
]]
local rcall = redis.call

-- Includes
--- @include "replies"

if rcall("EXISTS", KEYS[1], KEYS[2]) > 0 then return 0 end
local last = rcall("XREVRANGE", KEYS[3], "+", "-", "COUNT", 1)[1]
if not last or last[1] ~= ARGV[2] .. "-0" then return 0 end
local err = spAppend(KEYS[3], tonumber(ARGV[2]) + 1, {ARGV[3]}, ARGV[1])
if err then return err end
return 1
