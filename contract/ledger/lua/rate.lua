-- Places under limits, taken before a call is sent, so that a dispatcher sends no more calls than may be
-- started. `claim.lua` counts the starts.
-- KEYS: epoch, rate:{limit}..., then the record of each call that asks
-- ARGV: how many limits, how many notes, the longest hold without a start (ms), prefix of
--       keys, now (ms), then
--       for each limit: 'most window_ms'
--       for each note:  'member started limit...' (0: the place is freed)
--       for each call:  'member hold_ms limit...' (hold: how long it may wait to be started)
-- Returns for each call 'granted', 'known' (it has a record and needs no place), or 'ms limit': the longest
-- expected wait, and the limit that causes it.
-- A member has one place under a limit, so a repeated step takes nothing twice.
local limits, notes, longest = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
use_fleet_time(table.remove(KEYS, 1))
local root, now = ARGV[4], time_by(ARGV[5])
local LOOK_AGAIN_MS = 100
local most, window, used, free, touched = {}, {}, {}, {}, {}

for i = 1, limits do
  local m, w = string.match(ARGV[5 + i], '(%d+) (%d+)')
  most[i], window[i] = tonumber(m), tonumber(w)
  clean(KEYS[i], window[i], longest, now)
end

local function words_of(text)
  local words = {}
  for word in string.gmatch(text, '%S+') do words[#words + 1] = word end
  return words
end

for n = 1, notes do
  local words = words_of(ARGV[5 + limits + n])
  for w = 3, #words do
    local i = tonumber(words[w])
    redis.call('ZREM', KEYS[i], words[1])
    if words[2] == '1' then
      redis.call('ZADD', KEYS[i], now + window[i], words[1])
      touched[i] = true
    end
  end
end

for i = 1, limits do used[i] = redis.call('ZCARD', KEYS[i]) end

local function is_full(i)
  if used[i] >= most[i] and window[i] == 0 and not free[i] then
    free[i] = LOOK_AGAIN_MS
    sweep(KEYS[i], root, now)
    used[i] = redis.call('ZCARD', KEYS[i])
  end
  return used[i] >= most[i]
end

-- A waiting call may start now; its place then becomes free one window later.
local function free_in(i)
  if not free[i] then
    local at = used[i] - most[i]
    local score = tonumber(redis.call('ZRANGE', KEYS[i], at, at, 'WITHSCORES')[2])
    free[i] = math.max(1, math.ceil(math.min(score - now, window[i])))
  end
  return free[i]
end

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
    redis.call('ZADD', KEYS[i], now + tonumber(words[2]) + window[i], words[1])
    touched[i], used[i] = true, used[i] + 1
  end
  return 'granted'
end

local answers = {}
for c = 1, #KEYS - limits do
  answers[c] = ask(KEYS[limits + c], words_of(ARGV[5 + limits + notes + c]))
end
for i in pairs(touched) do keep_places(KEYS[i], window[i], now) end
return answers
