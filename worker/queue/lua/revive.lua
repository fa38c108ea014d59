--[[
  A lock that expired while Redis was out of reach or frozen is made again, if nobody has drawn a conclusion from
  it: the job is still in active and its mark carries our token, so its run has gone on all the while.
]]
local function spRevive(jobKey, activeKey, jobId, token, ms)
    local mark = redis.call("HGET", jobKey, "sp:run")
    if mark and string.sub(mark, 1, #token + 1) == token .. "|"
        and redis.call("LPOS", activeKey, jobId) ~= false then
        redis.call("SET", jobKey .. ":lock", token, "PX", ms)
        return true
    end
    return false
end
