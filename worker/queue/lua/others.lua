--[[
  The Redis clients (CLIENT ID) on which the queue's replicas wait for work: who waits besides is a stock Worker.
  KEYS: index:replicas
  ARGV: prefix
  Returns ids as strings.
]]
local ids = {}
for _, replica in ipairs(redis.call("ZRANGE", KEYS[1], 0, 9999)) do
    ids[#ids + 1] = redis.call("HGET", ARGV[1] .. "replica:" .. replica, "client") or nil
end
return ids
