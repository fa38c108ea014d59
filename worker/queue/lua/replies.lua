--[[
  Reply messages: a stream <prefix>reply:<jobId> and a channel of the same name, with the same messages.
  The id of an entry is <seq>-0, so that a call that is made again cannot duplicate.
]]

-- Appends messages from sequence number `seq` on; returns nil, or the error table of Redis.
local function spAppend(replyKey, seq, messages, ttl)
    for i = 1, #messages do
        local r = redis.pcall("XADD", replyKey, string.format("%d-0", seq + i - 1), "m", messages[i])
        if type(r) == "table" and r["err"] then
            -- An id that is there already: this call was made before, and subscribers have the message.
            if not string.find(r["err"], "equal or smaller", 1, true) then return r end
        else
            rcall("PUBLISH", replyKey, messages[i])
        end
    end
    rcall("PEXPIRE", replyKey, ttl)
    return nil
end

-- Whether an error of XADD is the server's for the time being, and not the stream's.
local function spPasses(err)
    for _, word in ipairs({"OOM", "READONLY", "MISCONF", "NOREPLICAS"}) do
        if string.find(err["err"], word, 1, true) then return true end
    end
    return false
end
