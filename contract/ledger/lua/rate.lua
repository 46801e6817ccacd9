-- Places under limits: taken before a call is sent, and kept until a window after its start, or, where
-- there is no window, for as long as the call waits or runs by what its record says.
-- KEYS: rate:{limit}..., then the record of each call that asks
-- ARGV: how many limits, how many notes, the longest that a place is held unstarted (ms), prefix of
--       records, prefix of worker leases, then
--       for each limit: 'most window_ms'
--       for each note:  'member started limit...' (0: it was not started, and gives its places back)
--       for each call:  'member hold_ms limit...' (hold: how long it may wait to be started)
-- Answers for each call 'granted', 'known' (it has a record: it is not started for this), or
-- 'ms limit': when the limit that keeps it longest may have a place, as far as can be seen.
-- A member has one place under a limit, so a step that is sent again takes nothing twice.
local limits, notes, longest = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local records, workers = ARGV[4], ARGV[5]
local RUNNING_KEY_MS = 604800000  -- longer than a call runs
local LOOK_AGAIN_MS = 100
local UNSEEN_MS = 20000
local now = now_ms()
local most, window, used, free, touched = {}, {}, {}, {}, {}

for i = 1, limits do
  local m, w = string.match(ARGV[5 + i], '(%d+) (%d+)')
  most[i], window[i] = tonumber(m), tonumber(w)
  local kind = redis.call('TYPE', KEYS[i]).ok
  if kind ~= 'zset' and kind ~= 'none' then redis.call('DEL', KEYS[i]) end
  if window[i] > 0 then redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', now) end
  -- what nobody can have put there, or did by a clock that has been set back since
  redis.call('ZREMRANGEBYSCORE', KEYS[i], '(' .. now + longest + window[i], '+inf')
end

local function words_of(text)
  local words = {}
  for word in string.gmatch(text, '%S+') do words[#words + 1] = word end
  return words
end

local function put(i, member, score)
  redis.call('ZADD', KEYS[i], score, member)
  touched[i] = true
end

for n = 1, notes do
  local words = words_of(ARGV[5 + limits + n])
  for w = 3, #words do
    local i = tonumber(words[w])
    if words[2] == '1' then put(i, words[1], now + window[i]) else redis.call('ZREM', KEYS[i], words[1]) end
  end
end

-- Whether a call waits or runs, of which no record says that it never will. One whose worker has no
-- lease is given time, for after an outage none has: its score is then until when, below zero.
local function is_under_way(i, member, score)
  local r = redis.pcall('HMGET', records .. member, 'state', 'worker', 'until')
  if not r[1] then return score > now end  -- it is yet to be sent, or its record is gone
  if r[1] ~= 'claimed' then return r[1] == 'open' and tonumber(r[3] or 0) > now end
  if redis.call('EXISTS', workers .. (r[2] or '')) == 1 then
    if score < 0 then redis.call('ZADD', KEYS[i], now, member) end
    return true
  end
  if score >= 0 then redis.call('ZADD', KEYS[i], -(now + UNSEEN_MS), member) end
  return score >= 0 or -score > now
end

-- Frees what the dispatchers of ended calls have not, or cannot any more.
local function sweep(i)
  local found = redis.call('ZRANGE', KEYS[i], 0, -1, 'WITHSCORES')
  for n = 1, #found, 2 do
    if not is_under_way(i, found[n], tonumber(found[n + 1])) then redis.call('ZREM', KEYS[i], found[n]) end
  end
  used[i] = redis.call('ZCARD', KEYS[i])
end

local function is_full(i)
  if used[i] >= most[i] and window[i] == 0 and not free[i] then
    free[i] = LOOK_AGAIN_MS
    sweep(i)
  end
  return used[i] >= most[i]
end

-- One that waits to be started may be at once, and its place is free a window later.
local function free_in(i)
  if not free[i] then
    local at = used[i] - most[i]
    local score = tonumber(redis.call('ZRANGE', KEYS[i], at, at, 'WITHSCORES')[2])
    free[i] = math.max(1, math.ceil(math.min(score - now, window[i])))
  end
  return free[i]
end

for i = 1, limits do used[i] = redis.call('ZCARD', KEYS[i]) end

local function ask(record, words)
  local known = redis.pcall('HMGET', record, 'state', 'anew')
  if known[1] and not known[2] and known[1] ~= 'waiting' and known[1] ~= 'approved' then return 'known' end
  local wait, by, missing = 0, 0, {}
  for w = 3, #words do
    local i = tonumber(words[w])
    if not redis.call('ZSCORE', KEYS[i], words[1]) then
      missing[#missing + 1] = i
      if is_full(i) and free_in(i) > wait then wait, by = free_in(i), i end
    end
  end
  if wait > 0 then return string.format('%d %d', wait, by) end
  for _, i in ipairs(missing) do
    put(i, words[1], now + tonumber(words[2]) + window[i])
    used[i] = used[i] + 1
  end
  return 'granted'
end

local answers = {}
for c = 1, #KEYS - limits do
  answers[c] = ask(KEYS[limits + c], words_of(ARGV[5 + limits + notes + c]))
end
for i in pairs(touched) do
  local last = redis.call('ZRANGE', KEYS[i], -1, -1, 'WITHSCORES')[2]
  if window[i] == 0 then
    redis.call('PEXPIRE', KEYS[i], RUNNING_KEY_MS)
  elseif last then
    redis.call('PEXPIREAT', KEYS[i], math.ceil(tonumber(last)))
  end
end
return answers
