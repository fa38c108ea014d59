--[[
  The safety net of the thread leases, run beside the stalled pass: threads with parked jobs and without a
  valid holder get their first job woken; what is in use is kept from expiring. Implements
  `wake_pass` of tests/model/sandpiper.pml.
  KEYS: index:parked
  ARGV: prefix, now (ms), look only at threads last looked at before (ms), how many threads at most
  Returns {how many jobs were woken, 1 when there are more threads to look at}. It looks at fewer where the lists are
  long, in which it may have to search for a job of each thread.
]]
local rcall = redis.call

-- Includes
--- @include "threads"

spContext(ARGV[1], ARGV[2], {})
local length = rcall("LLEN", spc.wait) + rcall("LLEN", spc.active)
local most = math.max(1, math.min(tonumber(ARGV[4]), math.floor(300000 / (length + 1000))))
local woken = 0
local threads = rcall("ZRANGEBYSCORE", KEYS[1], 0, ARGV[3], "LIMIT", 0, most)
for _, thread in ipairs(threads) do
    local leaseKey = ARGV[1] .. "lease:" .. thread
    local holder = rcall("GET", leaseKey)
    rcall("ZADD", KEYS[1], ARGV[2], thread)
    if holder and spHolds(leaseKey, holder) then
        if string.sub(holder, 1, 6) ~= "sweep:" then rcall("PEXPIRE", leaseKey, spKeepMs) end
    elseif spWakeHead(thread, nil, true) then
        woken = woken + 1
    end
    rcall("PEXPIRE", KEYS[1], spKeepMs)
    rcall("PEXPIRE", ARGV[1] .. "parked:" .. thread, spKeepMs)
    rcall("PEXPIRE", ARGV[1] .. "thread:" .. thread, spKeepMs)
end
return {woken, #threads == most and 1 or 0}
