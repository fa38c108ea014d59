--[[
  Writes one piece of an output file into its key, fenced by the job's lock token.
  KEYS: <job>:lock, file key, <job>, active
  ARGV: job id, token, ttl (ms), offset of the piece, bytes
  Returns 0; -2 no lock; -6 the lock is another's; -7 the key has another length than offset.
]]
local rcall = redis.call

-- Includes
--- @include "revive"

local lock = rcall("GET", KEYS[1])
if not lock and not spRevive(KEYS[3], KEYS[4], ARGV[1], ARGV[2], 5000) then return -2 end
if lock and lock ~= ARGV[2] then return -6 end
local offset = tonumber(ARGV[4])
local length = rcall("STRLEN", KEYS[2])
if offset == 0 then
    rcall("SET", KEYS[2], ARGV[5])
elseif length == offset then
    rcall("APPEND", KEYS[2], ARGV[5])
elseif length ~= offset + #ARGV[5] then -- equal: this call was made before
    return -7
end
rcall("PEXPIRE", KEYS[2], ARGV[3])
return 0
