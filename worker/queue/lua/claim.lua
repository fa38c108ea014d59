--[[
  Claims the next job whose thread is free. KEYS and results as BullMQ's moveToActive, with the fifth element
  of fetchNextJob.
  KEYS: wait, active, prioritized, events, stalled, limiter, delayed, paused, meta, pc, marker
  ARGV: prefix, now (ms), msgpack opts {token, lockDuration, limiter, name, sp}
]]
local rcall = redis.call

-- Includes
--- @include "fetchNextJob"

return fetchNextJob(KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[6], KEYS[7], KEYS[9], KEYS[10], KEYS[11],
    ARGV[1], ARGV[2], cmsgpack.unpack(ARGV[3])) or {0, 0, 0, 0}
