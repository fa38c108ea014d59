--[[
  Judges an entry of the intake stream: a job that BullMQ's own clients could have added, or a dead letter.
]]
local spIdMax = 512
local spReserved = {}
for word in string.gmatch("wait active prioritized pc delayed waiting-children completed failed paused stalled "
    .. "stalled-check limiter marker meta events id repeat metrics de lock logs dependencies processed unsuccessful",
    "%S+") do
    spReserved[word] = true -- keys of the queue, or endings of a job's own keys
end

local function spUtf8(s)
    if not string.find(s, "[\128-\255]") then return true end
    if string.find(s, "\224[\128-\159]") or string.find(s, "\237[\160-\191]") or string.find(s, "\240[\128-\143]")
        or string.find(s, "\244[\144-\191]") then
        return false
    end
    s = string.gsub(s, "[\194-\223][\128-\191]", " ")
    s = string.gsub(s, "[\224-\239][\128-\191][\128-\191]", " ")
    s = string.gsub(s, "[\240-\244][\128-\191][\128-\191][\128-\191]", " ")
    return not string.find(s, "[\128-\255]")
end

local function spNumber(token)
    local rest = string.match(token, "^%-?(.*)$")
    local int, tail = string.match(rest, "^(%d+)(.*)$")
    if not int or (#int > 1 and string.sub(int, 1, 1) == "0") then return false end
    tail = string.match(tail, "^%.%d+(.*)$") or tail
    return tail == "" or string.find(tail, "^[eE][+-]?%d+$") ~= nil
end

-- The value, or nil: not JSON. Stricter than cjson, which takes what JavaScript's parser (of every dashboard and
-- client that lists jobs) stumbles over: NaN, hexadecimal, "01", raw control characters.
local function spJson(text)
    local ok, value = pcall(cjson.decode, text)
    if not ok or not spUtf8(text) then return nil end
    local bare = string.gsub(text, "\\.", "")
    local control = false
    bare = string.gsub(bare, '"([^"]*)"', function(s)
        control = control or string.find(s, "[%z\1-\31]") ~= nil
        return '""'
    end)
    if control then return nil end
    bare = string.gsub(string.gsub(string.gsub(bare, "true", ""), "false", ""), "null", "")
    if string.find(bare, "[^%[%]{}:,\"%d%.eE+%- \t\r\n]") then return nil end
    for token in string.gmatch(bare, "[%d%.eE+%-]+") do
        if not spNumber(token) then return nil end
    end
    return value
end

local function spWhole(v, most)
    return type(v) == "number" and v >= 0 and v <= (most or 9007199254740991) and v == math.floor(v)
end

local function spKeep(v)
    return type(v) == "boolean" or spWhole(v) or type(v) == "number" and v == -1 or type(v) == "table" and v[1] == nil
end

-- What is wrong with the options, or nil; they are brought into the form in which BullMQ's clients store them.
local function spOptions(opts, dataLen)
    for _, name in ipairs({"attempts", "delay", "timestamp", "keepLogs", "stackTraceLimit", "sizeLimit"}) do
        if opts[name] ~= nil and not spWhole(opts[name]) then
            return "opts." .. name .. " is not a whole number of 0 or more"
        end
    end
    if opts["priority"] ~= nil and not spWhole(opts["priority"], 2097151) then
        return "opts.priority is not a whole number from 0 to 2097151"
    end
    if opts["lifo"] ~= nil and type(opts["lifo"]) ~= "boolean" then return "opts.lifo is not true or false" end
    for _, name in ipairs({"removeOnComplete", "removeOnFail"}) do
        if opts[name] ~= nil and not spKeep(opts[name]) then
            return "opts." .. name .. " is not true, false, a number or an object"
        end
    end
    for _, name in ipairs({"repeat", "repeatJobKey", "parent", "de", "deduplication", "debounce", "fpof", "cpof",
        "idof", "rdof", "failParentOnFailure", "continueParentOnFailure", "ignoreDependencyOnFailure",
        "removeDependencyOnFailure"}) do
        if opts[name] ~= nil then
            return "opts." .. name .. " is not supported for stream entries; add such jobs with BullMQ"
        end
    end
    local backoff = opts["backoff"]
    if spWhole(backoff) then
        if backoff > 0 then backoff = {type = "fixed", delay = backoff} else backoff = nil end
    elseif backoff ~= nil and (type(backoff) ~= "table" or type(backoff["type"]) ~= "string"
        or backoff["delay"] ~= nil and not spWhole(backoff["delay"])) then
        return "opts.backoff is not a whole number, or an object with type and delay"
    end
    if opts["sizeLimit"] and dataLen > opts["sizeLimit"] then
        return "data has " .. dataLen .. " bytes, opts.sizeLimit is " .. string.format("%d", opts["sizeLimit"])
    end
    opts["backoff"] = backoff
    opts["attempts"] = opts["attempts"] or 0
    opts["kl"], opts["keepLogs"] = opts["keepLogs"], nil
    return nil
end

local function spIdWrong(id)
    if #id > spIdMax or string.find(id, "%z") or not spUtf8(id) then
        return "id is not UTF-8 text of at most " .. spIdMax .. " bytes"
    end
    -- BullMQ lets no client choose an id with a colon, for keys are made with them; and a number would collide with
    -- the ids it gives itself.
    if spReserved[id] or string.find(id, ":", 1, true) or string.find(id, "^%d*$") then
        return "id is the name of a key of the queue, a number, or has a colon in it"
    end
    return nil
end

-- When the job came: with its entry, unless the producer chose ids of its own that are no times.
local function spCame(entryId, now, given)
    if given then return string.format("%d", given) end
    local ms = tonumber(string.match(entryId, "^%d+"))
    return string.format("%d", ms > now - 604800000 and ms < now and ms or now)
end

-- {id, name, data, opts, timestamp} of an entry's fields (name, value, ...), or nil and the reason.
local function spEntry(entryId, fields, dataMax, now)
    local f = {name = "execute", opts = "{}"}
    for i = 1, #fields, 2 do f[fields[i]] = fields[i + 1] end
    if f.data == nil then return nil, "it has no field data" end
    if #f.data > dataMax then return nil, "data has " .. #f.data .. " bytes, the limit is " .. dataMax end
    if #f.opts > 65536 then return nil, "opts has more than 65536 bytes" end
    if f.name == "" or #f.name > spIdMax or not spUtf8(f.name) then
        return nil, "name is not UTF-8 text of 1 to " .. spIdMax .. " bytes"
    end
    local opts = spJson(f.opts)
    if opts == nil then return nil, "opts is not JSON" end
    if type(opts) ~= "table" or not string.find(f.opts, "^%s*{") then return nil, "opts is not a JSON object" end
    if spJson(f.data) == nil then return nil, "data is not JSON that JavaScript and Lua can read" end
    local wrong = spOptions(opts, #f.data)
    if wrong then return nil, wrong end
    local id = f.id ~= "" and f.id or nil
    if opts["jobId"] ~= nil and (type(opts["jobId"]) ~= "string" or id and id ~= opts["jobId"]) then
        return nil, "opts.jobId is not text, or another id than the field id"
    end
    id = id or opts["jobId"] or "s-" .. entryId
    wrong = spIdWrong(id)
    if wrong then return nil, wrong end
    opts["jobId"] = id
    if not pcall(cjson.encode, opts) then return nil, "opts cannot be stored as JSON" end
    return {id = id, name = f.name, data = f.data, opts = opts, timestamp = spCame(entryId, now, opts["timestamp"])}
end
