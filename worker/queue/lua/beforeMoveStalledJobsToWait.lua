--[[
  Goes before BullMQ's stalled pass. When no pass and no renewal reached Redis for most of a lock's life, Redis was
  away or frozen, and locks have expired of workers that are well: each gets a lock's life to renew them.
  ARGV[5]: lock duration (ms)
]]
do
    local prefix, time = ARGV[2], redis.call("TIME")
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    local last = tonumber(redis.call("GET", prefix .. "turn:pulse")) or now
    redis.call("SET", prefix .. "turn:pulse", string.format("%d", now), "PX", 604800000)
    if now - last > ARGV[5] * 2 / 3 then redis.call("SET", prefix .. "turn:hold", 1, "PX", ARGV[5]) end
    if redis.call("EXISTS", prefix .. "turn:hold") == 1 then return {} end
end
