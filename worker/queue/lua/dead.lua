--[[
  Moves an entry of the intake stream that cannot be admitted to the dead letters, with the reason.
  KEYS: stream:jobs, stream:dead
  ARGV: group, entry id, reason, how many dead letters are kept, then the entry's fields and values
  Returns 1, or 0 when the entry was not ours to judge.
]]
local rcall = redis.call

if rcall("XACK", KEYS[1], ARGV[1], ARGV[2]) == 0 then return 0 end
rcall("XDEL", KEYS[1], ARGV[2])
rcall("XADD", KEYS[2], "MAXLEN", "~", ARGV[4], "*", "reason", ARGV[3], "entry", ARGV[2], unpack(ARGV, 5))
return 1
