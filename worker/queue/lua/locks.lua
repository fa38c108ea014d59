--[[
  Renews the locks of running jobs; one that has expired is made again by the rule of spRevive.
  KEYS: stalled, active
  ARGV: prefix, lock duration (ms), then id and token of each job
  Returns the ids whose lock is lost.
]]
local rcall = redis.call

-- Includes
--- @include "revive"

local lost = {}
for i = 3, #ARGV, 2 do
    local id, token = ARGV[i], ARGV[i + 1]
    local lockKey = ARGV[1] .. id .. ":lock"
    local lock = rcall("GET", lockKey)
    if lock == token then
        rcall("PEXPIRE", lockKey, ARGV[2])
    elseif lock or not spRevive(ARGV[1] .. id, KEYS[2], id, token, ARGV[2]) then
        lost[#lost + 1] = id
        id = nil
    end
    if id then rcall("SREM", KEYS[1], id) end
end
return lost
