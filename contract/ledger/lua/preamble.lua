-- Before every step: the fleet's clock, the server's epoch, and how replies are sent.
--
-- A call record is a hash:
--   state    waiting | approved | open | claimed | settled: the first two of a call that a person has to approve
--   epoch    the server epoch it was opened in      until     last ms at which it may be claimed
--   deadline ms by which the caller is answered     attempt   the attempt that may claim it
--   goes_on  a later epoch, in which it may be claimed all the same
--   rerun    1 where a second start does no harm    claims    how often it was claimed
--   replies  reply streams, space separated         worker    who claimed it
--   opened / claimed / settled_by                   nonces: the same step sent again gets its answer again
--   outcome  the signed first outcome               keep      ms its outcome is kept, where that is longer
--   anew     ms from which a call that was refused, and never ran, may be asked again
-- and, of a call that a person has to approve:
--   approval waiting | approved | denied | expired | cancelled   request, decision   signed
--   expires  ms by which it is decided, or once it is approved opened
--   asker    reply stream of the dispatcher that goes on with it   told   1 once somebody was told of its end
--
-- What may not run twice leaves a mark when it is claimed, `ran:<key>`, which outlives the record by far.

local REPLY_STREAM_MS = 3600000

-- The value of the epoch key: `<random> <offset ms> <ms at which a process agreed last> <version of the
-- switches> <signature of the first three>`; all but the first may be missing. Fleet time is the server's clock plus
-- the offset, which undoes the jumps of that clock.
local random, fleet_offset, agreed, switch_version, signature = '', 0, '', '', ''
local AGREEMENT_MS = 2000

local function offset_of(word)
  return #word < 16 and string.find(word, '^%-?%d+$') and tonumber(word) or 0
end

local function read_epoch(value)
  local offset
  random, offset, agreed, switch_version, signature = string.match(value, '^(%S*) ?(%S*) ?(%S*) ?(%S*) ?(%S*)')
  fleet_offset = offset_of(offset)
  if switch_version == '' then switch_version = random end  -- data was lost, and switches may be too
end

local function epoch_value()
  local last = agreed ~= '' and agreed or '0'
  return string.format('%s %.0f %s %s %s', random, fleet_offset, last, switch_version, signature)
end

-- Fleet time in a script that has called `server_epoch` or `use_fleet_time`; else the server's clock.
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000) + fleet_offset
end

-- The value of the epoch key; what somebody put in its place that is no string is lost data.
local function value_of(key)
  local value = redis.pcall('GET', key)
  if type(value) ~= 'table' then return value end
  redis.call('DEL', key)
  return false
end

local function use_fleet_time(key)
  read_epoch(value_of(key) or '')
end

-- `expected` is fleet time by the caller's own clock ('' = it has not read it before), and `right` the random
-- key, the offset and its signature that should be there. Where the caller found others, `seen` is the value
-- that it read; another process may have been first.
local function agree_on_time(key, expected, seen, right)
  local value = value_of(key)
  if not value or expected == '' then return end
  read_epoch(value)
  local own, offset, signed = string.match(right, '^(%S*) (%S*) (%S*)$')
  if value == seen then random, fleet_offset = own, offset_of(offset) end
  if math.abs(now_ms() - expected) <= AGREEMENT_MS and random == own and fleet_offset == offset_of(offset) then
    agreed, signature = expected, signed
    redis.pcall('SET', key, epoch_value())
  end
end

-- Changes with every restart and promotion (master_replid; after a failback the run id is an old one
-- again, so it does only where there is nothing else) and with lost data (the random key). Longer than
-- what Redis keeps in a packed hash, since a record is no packed one once it has its outcome: to pack
-- and unpack it costs more than it saves. Also returns the value of its key.
local function server_epoch(key, candidate)
  local value = value_of(key)
  if not value then  -- never the same twice: the same client may be the first after every loss
    value = candidate .. table.concat(redis.call('TIME'), '.')
    redis.call('SET', key, value)
  end
  read_epoch(value)
  local history = string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)')
    or string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
  return history .. '.' .. random, value
end

-- A queue that nobody publishes to or takes from any more expires with what is in it.
local QUEUE_MS = 600000

local function push(queue, message, wait_ms)
  if queue ~= '' and message ~= '' then
    redis.call('LPUSH', queue, message)
    redis.call('PEXPIRE', queue, QUEUE_MS + tonumber(wait_ms))
  end
end

local JUNK = {attempt = '0', deadline = '0', ['until'] = '0', replies = '', worker = ''}

-- Fields of a record. What somebody without the key has put in its place is removed if it is no hash, and
-- completed if it is one: it would fail the step for the other calls in it.
local function fields_of(key, ...)
  local found = redis.pcall('HMGET', key, ...)
  if not found.err then
    for i, name in ipairs({...}) do
      local usual = JUNK[name]
      if usual and found[1] and (not found[i] or usual == '0' and not tonumber(found[i])) then found[i] = usual end
    end
    return found
  end
  if not string.find(found.err, 'WRONGTYPE') then error(found.err) end
  redis.call('DEL', key)
  return {}
end

-- The mark of a call that was claimed: `<prefix>:ran:` is one shorter than `<prefix>:call:`.
local function mark_of(prefix, key)
  return prefix .. string.sub(key, #prefix + 2)
end

local function is_marked(prefix, key)
  return redis.call('EXISTS', mark_of(prefix, key)) == 1
end

local function mark(prefix, key, ms)
  redis.call('SET', mark_of(prefix, key), '', 'PX', ms)
end

local function send(stream, body)
  redis.call('XADD', stream, '*', 'b', body)
  redis.call('PEXPIRE', stream, REPLY_STREAM_MS)
end

-- Whether the dispatcher that reads a reply stream holds its lease.
local function is_alive(stream)
  local prefix, id = string.match(stream, '^(.*):reply:([^:]*)$')
  return prefix ~= nil and redis.call('EXISTS', prefix .. ':dispatcher:' .. id) == 1
end

local ASKERS = 16

-- Notes a reply stream on a record. Where there are many, those of dead dispatchers make room; one
-- that finds no room is not told and has to look for itself.
local function attach(key, replies, stream)
  local noted = {}
  replies = replies or ''  -- of a record that nobody of ours has written
  for known in string.gmatch(replies, '%S+') do
    if known == stream then return replies end
    noted[#noted + 1] = known
  end
  if #noted >= ASKERS then
    local alive = {}
    for _, known in ipairs(noted) do
      if is_alive(known) then alive[#alive + 1] = known end
    end
    noted = alive
  end
  if #noted < ASKERS then noted[#noted + 1] = stream end
  replies = table.concat(noted, ' ')
  redis.call('HSET', key, 'replies', replies)
  return replies
end

-- `longer` is the record's `keep`.
local function settle(key, nonce, keep_ms, longer, body, replies, except)
  redis.call('HSET', key, 'state', 'settled', 'settled_by', nonce, 'outcome', body)
  redis.call('PEXPIRE', key, math.max(tonumber(keep_ms), tonumber(longer or '0')))
  for stream in string.gmatch(replies, '%S+') do
    if stream ~= except then send(stream, body) end
  end
end

-- A call that was refused, and never ran, is asked again when its answer said so. What a person approved
-- stays approved. Returns its state, false where it has no record any more.
local function forget_refusal(key)
  if redis.call('HGET', key, 'approval') == 'approved' then
    redis.call('HDEL', key, 'outcome', 'settled_by', 'anew')
    redis.call('HSET', key, 'state', 'approved')
    return 'approved'
  end
  redis.call('DEL', key)
  return false
end
