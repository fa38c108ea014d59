// How many jobs of its thread are ahead of a job.

const SCAN = 1_000; // jobs of the queue that are looked at, at most

/**
 * Reads only. KEYS[1]: <P>meta (names the slot); ARGV: <P>, job id, most jobs to look at. Returns nil when there is no such job, else
 * {ended, thread, holder (0, 1: another job, 2: itself), parked before it, waiting before it, parked?, all seen?, lists}
 */
export const script = `
local P, id, most = ARGV[1], ARGV[2], tonumber(ARGV[3])
local function enc(s) return (string.gsub(s, '[%%:]', { ['%'] = '%25', [':'] = '%3A' })) end
local function threadOf(job)
    local f = redis.call('HMGET', P .. job, 'sp:t', 'opts')
    if f[1] then return f[1] end
    if redis.call('HSTRLEN', P .. job, 'data') > 1048576 then return nil end
    local data = redis.call('HGET', P .. job, 'data') or ''
    local group = f[2] and string.find(f[2], '"group"', 1, true)
    if not group and not string.find(data, '"threadId"', 1, true) then return nil end
    local fine, d = pcall(cjson.decode, data)
    if not fine or type(d) ~= 'table' then return nil end
    local t = d['threadId']
    if group and (type(t) ~= 'string' or t == '') then
        local ok, o = pcall(cjson.decode, f[2])
        t = ok and type(o) == 'table' and type(o['group']) == 'table' and o['group']['id'] or nil
    end
    if type(t) ~= 'string' or t == '' then return nil end
    local w = d['workspaceId']
    return enc(type(w) == 'string' and w or '') .. ':' .. enc(t)
end
local job = redis.call('HMGET', P .. id, 'timestamp', 'finishedOn')
if not job[1] then return nil end
if job[2] then return {1, '', 0, 0, 0, 0, 1} end
local T = threadOf(id)
if not T then return {0, '', 0, 0, 0, 0, 1} end
local holder = redis.call('GET', P .. 'lease:' .. T)
if holder == id then return {0, T, 2, 0, 0, 0, 1} end
local holds = 0
if holder then
    local h = redis.call('HMGET', P .. holder, 'timestamp', 'finishedOn')
    if h[1] and not h[2] then holds = 1 end
end
local rank = redis.call('ZRANK', P .. 'parked:' .. T, id)
if rank then return {0, T, holds, rank, 0, 1, 1} end
-- Not yet seen by a worker: behind all that are parked, and those of its thread before it in the line.
local parked = redis.call('ZCARD', P .. 'parked:' .. T)
local ahead, looked, found, all = 0, 0, false, 1
local function walk(ids)
    for _, other in ipairs(ids) do
        if other == id then found = true return end
        if looked >= most then all = 0 return end
        looked = looked + 1
        if other ~= holder and not redis.call('ZSCORE', P .. 'parked:' .. T, other) and threadOf(other) == T then
            ahead = ahead + 1
        end
    end
end
for _, list in ipairs({ 'wait', 'paused' }) do
    if not found and all == 1 then
        local ids = redis.call('LRANGE', P .. list, -(most + 1), -1)
        local turned = {}
        for i = #ids, 1, -1 do turned[#turned + 1] = ids[i] end
        walk(turned)
    end
end
if not found and all == 1 then walk(redis.call('ZRANGE', P .. 'prioritized', 0, most)) end
return {0, T, holds, parked, ahead, 0, all}
`;

/** Of that answer: {state, ahead, exact, thread}. */
export function position(answer) {
  if (answer === null) return { state: 'unknown', ahead: 0, exact: true, thread: null };
  const [ended, thread, holder, parked, waiting, isParked, all] = answer;
  const state = ended ? 'ended' : holder === 2 ? 'first' : isParked ? 'parked' : 'waiting';
  return { state, ahead: ended || holder === 2 ? 0 : holder + parked + waiting, exact: all === 1, thread: thread || null };
}

export { SCAN };
