--[[
  Writes fields of a thread's record; an empty value removes the field.
  KEYS: thread:<T>
  ARGV: field, value, ...
]]
local rcall = redis.call

for i = 1, #ARGV, 2 do
    if ARGV[i + 1] == "" then
        rcall("HDEL", KEYS[1], ARGV[i])
    else
        rcall("HSET", KEYS[1], ARGV[i], ARGV[i + 1])
    end
end
rcall("PEXPIRE", KEYS[1], 604800000)
return 1
