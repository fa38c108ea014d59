--[[
  Renews the locks of running jobs. A lock that expired while Redis was away is made again if the job is
  still in active and its mark carries our token (its run has gone on all the while).
  KEYS: stalled, active
  ARGV: prefix, lock duration (ms), then id and token of each job
  Returns the ids whose lock is lost.
]]
local rcall = redis.call

local lost = {}
for i = 3, #ARGV, 2 do
    local id, token = ARGV[i], ARGV[i + 1]
    local lockKey = ARGV[1] .. id .. ":lock"
    local lock = rcall("GET", lockKey)
    local ours = lock == token
    if not lock then
        local mark = rcall("HGET", ARGV[1] .. id, "sp:run")
        ours = mark and string.sub(mark, 1, #token + 1) == token .. "|"
            and rcall("LPOS", KEYS[2], id) ~= false
    end
    if ours then
        rcall("SET", lockKey, token, "PX", ARGV[2])
        rcall("SREM", KEYS[1], id)
    else
        lost[#lost + 1] = id
    end
end
return lost
