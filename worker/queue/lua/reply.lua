--[[
  Appends reply messages of a running job, fenced by its lock token, and (with the first) marks the run: then the lock
  also begins a new life, so that the worker knows until when the code may be delivered. The mark implements
  `set_mark` of tests/model/sandpiper.pml, and the fence its `fenced`.
  KEYS: <job>:lock, <job>, <prefix>reply:<job>, active
  ARGV: job id, token, ttl of the reply (ms), mark or "", life of the lock (ms), first seq (0: publish only, a
    heartbeat), message ...
  Returns 0; -1 no job; -2 no lock; -6 the lock is another's.
]]
local rcall = redis.call

-- Includes
--- @include "replies"
--- @include "revive"

local jobId, token, ttl, mark, first = ARGV[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[6])
local lock = rcall("GET", KEYS[1])
if rcall("EXISTS", KEYS[2]) == 0 then return -1 end
if not lock and not spRevive(KEYS[2], KEYS[4], jobId, token, 5000) then return -2 end
if lock and lock ~= token then return -6 end

local messages = {}
for i = 7, #ARGV do messages[#messages + 1] = ARGV[i] end
if first == 0 then
    for i = 1, #messages do rcall("PUBLISH", KEYS[3], messages[i]) end
elseif #messages > 0 then
    -- No number kept: nothing was said since the job's last `done`, so an older stream is history.
    if rcall("HEXISTS", KEYS[2], "sp:seq") == 0 then rcall("DEL", KEYS[3]) end
    local err = spAppend(KEYS[3], first, messages, ttl)
    if err then return err end
    rcall("HSET", KEYS[2], "sp:seq", first + #messages - 1)
end
if mark ~= "" then
    rcall("HSET", KEYS[2], "sp:run", mark)
    rcall("PEXPIRE", KEYS[1], ARGV[5])
end
return 0
