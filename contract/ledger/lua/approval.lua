-- The records of approvals: a hash with `request`, `state`, `decision`, `expires` (ms), `reply` (the
-- dispatcher that waits for it) and `taken` (ms until which that one goes on with it).
-- KEYS: approvals waiting, approvals granted and not sent, stream of what was decided, approval...
-- ARGV: what, then by it:
--   ask      reply stream, ms it is good for, ms it is kept after that, request, key of the call record
--            -> state, request, decision, ms since it could be sent first; the state is 'recorded'
--               where the call needs none, since it was sent
--   look     reply stream ('' waits for nothing) -> the same; '' where there is none
--   decide   state, decision -> 'done', or the state it has
--   withdraw -> the state it had
--   sent     -> the state it had
--   tell     -> 'first' where nobody was told what became of it
--   follow   reply stream, last entry read, prefix of approvals, ms that one may take to send it
--            -> last entry, how many ids and states follow, these, then the ids that the caller is to
--               go on with
--   list     prefix of approvals, how many -> id, state, request, decision, ms of each
local waiting, granted, stream, key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local what = ARGV[1]
local now = now_ms()
local STREAM_MS = 86400000
local STREAM_LENGTH = 10000
local RECORD_MS = 60000

local function id_of(name)
  return string.match(name, '[^:]*$')
end

-- Whether the state has become another since: what waits or is granted is good for a time only.
local function state_of(name)
  local found = redis.call('HMGET', name, 'state', 'expires')
  local state = found[1]
  if (state == 'waiting' or state == 'approved') and now >= tonumber(found[2]) then
    redis.call('HSET', name, 'state', 'expired')
    redis.call('ZREM', waiting, id_of(name))
    redis.call('ZREM', granted, id_of(name))
    return 'expired'
  end
  return state
end

local function tell(state)
  redis.call('XADD', stream, 'MAXLEN', '~', STREAM_LENGTH, '*', 'i', id_of(key), 's', state)
  redis.call('PEXPIRE', stream, STREAM_MS)
end

local function outlive(set, ms)
  if redis.call('PTTL', set) < tonumber(ms) then redis.call('PEXPIRE', set, ms) end
end

local function whole(name, state)
  local found = redis.call('HMGET', name, 'request', 'decision', 'first')
  return {state, found[1] or '', found[2] or '', tostring(found[3] and now - found[3] or 0)}
end

-- Whoever learns that a call was approved may send it: from then on it may have run.
local function for_sender(name, state)
  if state == 'approved' then redis.call('HSETNX', name, 'first', now) end
  return whole(name, state)
end

-- A dispatcher that is gone leaves what it waits for to whoever asks next.
local function wait_for(name, reply)
  local owner = redis.call('HGET', name, 'reply')
  if not owner or not is_alive(owner) then redis.call('HSET', name, 'reply', reply) end
end

if what == 'ask' then
  local reply, good_ms, kept_ms, request, record = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
  local state = state_of(key)
  if state then
    wait_for(key, reply)
    return for_sender(key, state)
  end
  if redis.call('EXISTS', record) == 1 then  -- and it is to be there still when the call attaches
    if redis.call('PTTL', record) < RECORD_MS then redis.call('PEXPIRE', record, RECORD_MS) end
    return {'recorded', '', '', '0'}
  end
  local expires = now + good_ms
  redis.call('HSET', key, 'state', 'waiting', 'request', request, 'expires', expires, 'reply', reply)
  redis.call('PEXPIRE', key, good_ms + kept_ms)
  redis.call('ZREMRANGEBYSCORE', waiting, '-inf', now)
  redis.call('ZADD', waiting, expires, id_of(key))
  outlive(waiting, good_ms + kept_ms)
  return {'waiting', request, '', '0'}
elseif what == 'look' then
  local state = state_of(key)
  if not state then return {'', '', '', '0'} end
  if ARGV[2] == '' then return whole(key, state) end
  wait_for(key, ARGV[2])
  return for_sender(key, state)
elseif what == 'decide' then
  local state = state_of(key)
  if state ~= 'waiting' then return {state or 'gone'} end
  redis.call('HSET', key, 'state', ARGV[2], 'decision', ARGV[3])
  redis.call('ZREM', waiting, id_of(key))
  if ARGV[2] == 'approved' then
    redis.call('ZADD', granted, redis.call('HGET', key, 'expires'), id_of(key))
    outlive(granted, math.max(1, redis.call('PTTL', key)))
  end
  tell(ARGV[2])
  return {'done'}
elseif what == 'withdraw' then
  local state = state_of(key)
  if state == 'waiting' then
    redis.call('HSET', key, 'state', 'withdrawn')
    redis.call('ZREM', waiting, id_of(key))
    tell('withdrawn')
  end
  return {state or ''}
elseif what == 'sent' then
  local found = redis.call('HMGET', key, 'state', 'first')
  local state = found[1]
  -- Its time may have ended between its sending and this.
  if state == 'approved' or (state == 'expired' and found[2]) then
    redis.call('HSET', key, 'state', 'sent')
  end
  redis.call('ZREM', granted, id_of(key))
  return {state or ''}
elseif what == 'tell' then
  if redis.call('EXISTS', key) == 0 then return {''} end
  return {redis.call('HSETNX', key, 'told', '1') == 1 and 'first' or ''}
elseif what == 'follow' then
  local reply, last, prefix, taken_ms = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
  local entries = {}
  if last == '' then
    local newest = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)
    last = newest[1] and newest[1][1] or '0-0'
  else
    entries = redis.call('XRANGE', stream, '(' .. last, '+', 'COUNT', 1000)
  end
  local answers = {last, tostring(#entries)}
  for _, entry in ipairs(entries) do
    answers[1] = entry[1]
    answers[#answers + 1] = entry[2][2]
    answers[#answers + 1] = entry[2][4]
  end
  for _, id in ipairs(redis.call('ZRANGE', granted, 0, 255)) do
    local name = prefix .. id
    if state_of(name) ~= 'approved' then
      redis.call('ZREM', granted, id)
    else
      local found = redis.call('HMGET', name, 'reply', 'taken')
      local is_free = found[1] == reply or not is_alive(found[1])
      if is_free and tonumber(found[2] or '0') < now then
        redis.call('HSET', name, 'reply', reply, 'taken', now + taken_ms)
        answers[#answers + 1] = id
      end
    end
  end
  return answers
else  -- list
  local prefix, most = ARGV[2], ARGV[3]
  local answers = {}
  for _, id in ipairs(redis.call('ZRANGE', waiting, 0, most - 1)) do
    local name = prefix .. id
    local state = state_of(name)
    if state == 'waiting' then
      local found = whole(name, state)
      answers[#answers + 1] = id
      for i = 1, 4 do answers[#answers + 1] = found[i] end
    end
  end
  return answers
end
