--[[
  Claims the next job whose thread is free. Results as those of BullMQ's moveToActive, a job as our fetchNextJob
  gives it. Implements `claim` of tests/model/sandpiper.pml.
  KEYS: wait
  ARGV: prefix, now (ms), msgpack opts {token, lockDuration, limiter, name, sp}
]]
local rcall = redis.call

-- Includes
--- @include "fetchNextJob"

spc.alone = true -- nothing is lost when an error ends this call
return fetchNextJob(nil, nil, nil, nil, nil, nil, nil, nil, nil, ARGV[1], ARGV[2], cmsgpack.unpack(ARGV[3]))
    or {0, 0, 0, 0}
