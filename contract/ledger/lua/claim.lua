-- A worker claims calls it has free slots for. Never creates a record. Fleet-wide rules are checked here again,
-- so that dispatchers that are old, frozen or misconfigured cannot bypass them.
-- KEYS: epoch, record..., then the limits that any of them is under
-- ARGV: epoch candidate, worker, prefix of marks, ms a mark is kept, epoch and version of the switches that the worker
--       knows ('' = not checked), how many records, limits ('' = none; else the worker's fleet
--       time in ms, the longest hold of a place, ms within which a start is reported, then
--       'most window_ms' of each), then for each record:
--       attempt; nonce, whether it may run twice as its message says (0 no, 1 yes, 2 yes, and a person
--       approved it), and the numbers of its limits in one string
-- Returns for each record the ms left to its deadline, or why the claim was refused.
local epoch = server_epoch(KEYS[1], ARGV[1])
local worker, marks, mark_ms = ARGV[2], ARGV[3], ARGV[4]
local is_stale = ARGV[5] ~= '' and ARGV[5] ~= epoch .. ' ' .. switch_version
local records = tonumber(ARGV[6])
local now = now_ms()
local most, window, at, told_ms = {}, {}, 0, 0

if ARGV[7] ~= '' then
  local clock, longest, told, rest = string.match(ARGV[7], '^(%d+) (%d+) (%d+) (.*)$')
  at, told_ms = time_by(clock), tonumber(told)
  for m, w in string.gmatch(rest, '(%d+) (%d+)') do
    local i = #most + 1
    most[i], window[i] = tonumber(m), tonumber(w)
    clean(KEYS[1 + records + i], window[i], tonumber(longest), at)
  end
end

-- Whether a call can start under a limit. A call that has a place there cannot if as many have started: its dispatcher
-- knows a higher limit than its worker.
local function has_room(set, member, i, root)
  local has_place = redis.call('ZSCORE', set, member)
  local used = redis.call('ZCARD', set) - (has_place and 1 or 0)
  if used >= most[i] and window[i] == 0 then
    sweep(set, root, at)
    used = redis.call('ZCARD', set) - (redis.call('ZSCORE', set, member) and 1 or 0)
  end
  if used >= most[i] and has_place then
    used = 0
    for _, name in ipairs(redis.call('ZRANGE', set, 0, -1)) do
      if string.find(name, '#', 1, true) then used = used + 1 end
    end
  end
  return used < most[i]
end

-- Whether a call can start under each of its limits. If so, it counts as started until its worker reports the time.
-- Otherwise it loses its places, and its dispatcher asks for places under the limits of the worker.
local function may_start(key, nonce, limits)
  local root = string.sub(marks, 1, -5)  -- without `ran:`
  local member = string.sub(key, #root + 6)
  for number in string.gmatch(limits, '%d+') do
    local i = tonumber(number)
    if not has_room(KEYS[1 + records + i], member, i, root) then
      for each in string.gmatch(limits, '%d+') do redis.call('ZREM', KEYS[1 + records + each], member) end
      return false
    end
  end
  for number in string.gmatch(limits, '%d+') do
    local i = tonumber(number)
    local set = KEYS[1 + records + i]
    redis.call('ZREM', set, member)
    if window[i] > 0 then
      redis.call('ZADD', set, at + told_ms + window[i], member .. '#' .. nonce)
    else
      redis.call('ZADD', set, at, member .. '#' .. nonce .. '@' .. worker)
    end
    keep_places(set, window[i], at)
  end
  return true
end

local answers = {}
for i = 2, records + 1 do
  local attempt = ARGV[i * 2 + 4]
  local nonce, may_rerun, limits = string.match(ARGV[i * 2 + 5], '^(%S+) (%d) ?(.*)$')
  local r = fields_of(KEYS[i], 'state', 'attempt', 'claimed', 'until', 'deadline', 'epoch', 'rerun',
    'goes_on', 'claims', 'approval')
  local is_once, answer = r[7] ~= '1' or may_rerun == '0', nil
  if not r[1] then answer = 'absent'
  elseif r[1] == 'settled' then answer = 'settled'
  elseif r[2] ~= attempt then answer = 'attempt'
  elseif r[1] == 'claimed' then
    answer = (r[3] == nonce) and tostring((r[5] or now) - now) or 'claimed'
  elseif r[1] ~= 'open' then  -- not approved, or approved but not sent
    answer = (r[1] == 'waiting' or r[1] == 'approved') and r[1] or 'absent'
  elseif r[10] and r[10] ~= 'approved' then answer = 'waiting'  -- held or given back while it waited
  elseif tonumber(r[4] or 0) <= now then answer = 'expired'
  elseif r[6] ~= epoch and r[8] ~= epoch then answer = 'moved'  -- it may have been cancelled in the meantime
  elseif is_once and r[7] == '1' and tonumber(r[9] or 0) > 0 then answer = 'ran'  -- it may no longer run twice
  elseif is_stale then answer = 'stale'
  elseif (may_rerun == '2' or is_once and limits ~= '') and has_mark(marks, KEYS[i]) then answer = 'ran'
  elseif limits ~= '' and not may_start(KEYS[i], nonce, limits) then answer = 'limited'
  elseif is_once and not mark_first(marks, KEYS[i], mark_ms) then answer = 'ran'
  else
    redis.call('HSET', KEYS[i], 'state', 'claimed', 'claimed', nonce, 'worker', worker,
      'claims', (r[9] or 0) + 1, 'rerun', is_once and '0' or '1')
    answer = tostring((r[5] or now) - now)
  end
  answers[i - 1] = answer
end
return answers
