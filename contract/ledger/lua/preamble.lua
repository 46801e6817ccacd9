-- Precedes every script: the fleet's clock, the server's epoch, and sending replies.
--
-- A call record is a hash:
--   state    waiting | approved (calls that need approval) | open | claimed | settled
--   epoch    the server epoch it was opened in      until     last ms at which it may be claimed
--   deadline ms by which the caller is answered     attempt   the attempt that may claim it
--   goes_on  a later epoch in which it may be claimed too, as a dispatcher still waits for it
--   rerun    1 if a second start does no harm       claims    how often it was claimed
--   replies  reply streams, space separated         worker    who claimed it
--   opened / claimed / settled_by                   nonces: a repeated step gets the same answer
--   outcome  the signed first outcome               keep      ms its outcome is kept, if longer
--   anew     ms from which a refused call that never ran may be asked again
-- and for a call that needs approval:
--   approval waiting | approved | denied | expired | cancelled   request, decision   signed
--   expires  ms by which it must be decided, or, once approved, opened
--   unsent_in   the epoch in which no dispatcher has sent it, as all of them are alive and say so
--   asker    reply stream of the dispatcher that continues it   told   1 once its end was notified
--
-- A call that may not run twice leaves a mark `ran:<key>` when it is claimed, which outlives the record by far.
-- A call that ends unclaimed leaves a mark, too, whose value is when its record ends (ms, fleet time). A request from
-- before that time does not run, such as one that still waits behind others of its turn. A later one removes the mark.
-- The value is negative if the call was refused for a time: minus the ms from which it may be asked again.
-- A call with any mark cannot be claimed, unless it may run twice and no person had to approve it.

-- Added to the expiry of what must survive a clock jump. Jumps of up to an hour are tolerated.
local SPARE_MS = 7200000

-- The value of the epoch key: `<random> <offset ms> <ms at which a process agreed last> <version of the
-- switches> <signature of the first three> <ms at which a process agreed after a gap> <ms until which processes
-- report>`; every part except the first may be missing. Fleet time is the server's clock plus the offset, which
-- compensates for the jumps of that clock.
local random, fleet_offset, agreed, switch_version, signature, after_gap, reports_until = '', 0, '', '', '', '', ''
local AGREEMENT_MS = 2000
-- Dispatchers confirm fleet time every second. If no process has for longer than this, the server's clock has
-- jumped or the server stood still.
local GAP_MS = 4000

-- A later date until which processes report, and a longer random key, are not valid.
local LONGEST_REPORTS_MS = 3600000
local LONGEST_RANDOM = 64

local function offset_of(word)
  return #word < 16 and string.find(word, '^%-?%d+$') and tonumber(word) or 0
end

local function read_epoch(value)
  local offset
  random, offset, agreed, switch_version, signature, after_gap, reports_until = string.match(value,
    '^(%S*) ?(%S*) ?(%S*) ?(%S*) ?(%S*) ?(%S*) ?(%S*)')
  fleet_offset = offset_of(offset)
  if switch_version == '' then switch_version = random end  -- data was lost, perhaps switches too
end

local function epoch_value()
  local last = agreed ~= '' and agreed or '0'
  return string.format('%s %.0f %s %s %s %s %s', random, fleet_offset, last, switch_version, signature, after_gap,
    reports_until)
end

-- Fleet time if the script has called `server_epoch` or `use_fleet_time`; else the server's clock.
local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000) + fleet_offset
end

-- Fleet time, or the time of the last confirmation if no process has confirmed it for `GAP_MS`. Whatever has expired
-- by this time has certainly expired.
local function certain_ms()
  local now, last = now_ms(), offset_of(agreed)
  return last > 0 and now - last > GAP_MS and last or now
end

-- Fleet time, or the caller's own estimate of it if the server's clock has jumped and no process has
-- corrected fleet time yet.
local ROUGHLY_MS = 2000

local function time_by(told)
  local own = now_ms()
  told = tonumber(told)
  return told > 0 and math.abs(own - told) > ROUGHLY_MS and told or own
end

-- A command on a key that writers without a signing key may have overwritten. If the command fails because of
-- the value (another type, or a stream that has reached the last id), the value is deleted as lost data.
local function call(command, key, ...)
  local answer = redis.pcall(command, key, ...)
  local err = type(answer) == 'table' and answer.err
  if not err then return answer end
  if string.find(err, 'WRONGTYPE') or command == 'XADD' and string.find(err, 'stream') then redis.call('DEL', key) end
  return redis.call(command, key, ...)
end

local function value_of(key)
  return call('GET', key)
end

local function use_fleet_time(key)
  read_epoch(value_of(key) or '')
end

-- `expected` is fleet time by the caller's clock ('' = not read before), and `right` the random key, the offset
-- and its signature that should be there. If the caller found other values, `seen` is the value that it read;
-- another process may have corrected it first.
local function agree_on_time(key, expected, seen, right)
  local value = value_of(key)
  if not value or expected == '' then return end
  read_epoch(value)
  local own, offset, signed = string.match(right, '^(%S*) (%S*) (%S*)$')
  if value == seen then
    if offset_of(reports_until) > 0 then
      reports_until = string.format('%.0f', offset_of(reports_until) + offset_of(offset) - fleet_offset)
    end
    random, fleet_offset = own, offset_of(offset)
  end
  if math.abs(now_ms() - expected) <= AGREEMENT_MS and random == own and fleet_offset == offset_of(offset) then
    local last = offset_of(agreed)
    if last > 0 and expected - last > GAP_MS then after_gap = expected end
    agreed, signature = expected, signed
    redis.pcall('SET', key, epoch_value())
  end
end

-- The epoch changes with every restart and promotion (master_replid; the run id, which an old primary gets
-- back after a failback, is only the fallback) and with lost data (the random key). It is too long for Redis's
-- packed hashes on purpose: a record with an outcome is not packed, and converting it costs more than it saves.
-- The candidate is `<unique word>:<ms in which a process has to report>:<ends of the last epoch that the caller has seen>`,
-- followed by the epochs before that one. If this server is still in one of these, the caller returns to it from another
-- server (or its data were restored). The steps taken meanwhile are missing here, so another epoch begins. Also returns
-- the value of the epoch key.
local function server_epoch(key, candidate)
  local own, report_ms, last, left = string.match(candidate, '^([^%s:]*):?(%d*):?(%S*)(.*)$')
  local value = value_of(key)
  local is_valid = value and string.find(value, '^[%w%p][%w%p ]*$') and #string.match(value, '^%S*') <= LONGEST_RANDOM
  if not is_valid then  -- unique, as one client may be the first after every loss
    value = own .. table.concat(redis.call('TIME'), '.')
    redis.call('SET', key, value)
  end
  read_epoch(value)
  local history = string.match(redis.call('INFO', 'replication'), 'master_replid:(%w+)')
    or string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
  if left ~= '' and string.find(left .. ' ', ' ' .. history .. '.' .. random .. ' ', 1, true) then
    local fresh = own .. table.concat(redis.call('TIME'), '.')
    local answer = redis.pcall('SET', key, fresh)
    if not answer.err then value = fresh end
    read_epoch(value)
  end
  local epoch = history .. '.' .. random
  if last ~= '' and last ~= string.sub(epoch, 1, 4) .. string.sub(epoch, -4) then
    reports_until = string.format('%.0f', now_ms() + report_ms)
    value = epoch_value()
    local answer = redis.pcall('SET', key, value)
    -- The caller must not take the epoch for its own before this is stored. A full server opens no call anyway.
    if answer.err and not string.find(answer.err, 'OOM', 1, true) then redis.call('SET', key, value) end
  end
  return epoch, value
end

-- Whether processes that come from another epoch may still have to report what this server lacks: calls that they have
-- sent, run or ended. What is dispatched now may have run before.
local function awaits_reports(now)
  local left = offset_of(reports_until) - now
  return left > 0 and left <= LONGEST_REPORTS_MS
end

-- An unused queue expires with its messages.
local QUEUE_MS = 600000

local function push(queue, message, wait_ms)
  if queue ~= '' and message ~= '' then
    call('LPUSH', queue, message)
    redis.call('PEXPIRE', queue, QUEUE_MS + tonumber(wait_ms))
  end
end

local USUAL = {attempt = '0', deadline = '0', ['until'] = '0', replies = '', worker = '', outcome = ''}
local NUMBERS = {attempt = 1, deadline = 1, ['until'] = 1, claims = 1, releases = 1, keep = 1, expires = 1, anew = 1}

-- Fields of a record. Missing fields of a foreign record are filled in, so that it cannot fail the step for
-- other calls.
local function fields_of(key, ...)
  local found = call('HMGET', key, ...)
  if found[1] then
    for i, name in ipairs({...}) do
      local value = found[i]
      if value and NUMBERS[name] and (#value > 15 or not string.find(value, '^%-?%d+$')) then value = false end
      found[i] = value or USUAL[name] or false
    end
  end
  return found
end

-- The key of a call's mark. `prefix` is `<prefix>:ran:`, which is one character shorter than the
-- `<prefix>:call:` that `key` begins with.
local function mark_of(prefix, key)
  return prefix .. string.sub(key, #prefix + 2)
end

-- Whether a mark prevents a call from running that was dispatched at `asked_at` (the caller's fleet time), or
-- now.
local function is_marked(prefix, key, asked_at)
  local value = redis.pcall('GET', mark_of(prefix, key))
  if type(value) ~= 'string' then return value ~= false end
  local ends = tonumber(value) or math.huge
  if not asked_at then return certain_ms() < ends end
  if asked_at < math.abs(ends) then return true end
  redis.call('DEL', mark_of(prefix, key))
  return false
end

local function has_mark(prefix, key)
  return redis.call('EXISTS', mark_of(prefix, key)) == 1
end

-- The mark of a call that shares a run. If it may run twice, its own record may still be opened.
local SHARED = 'shared'

local function is_noted_as_shared(prefix, key)
  return redis.pcall('GET', mark_of(prefix, key)) == SHARED
end

local function mark(prefix, key, ms)
  redis.call('SET', mark_of(prefix, key), '', 'PX', ms)
end

-- Sets or renews the mark of a call that was dispatched again. A mark with an end time is left unchanged, so
-- that a later request can remove it.
local function mark_again(prefix, key, ms)
  if not tonumber(redis.pcall('GET', mark_of(prefix, key)) or '') then mark(prefix, key, ms) end
end

-- False if the call has a mark.
local function mark_first(prefix, key, ms)
  return redis.call('SET', mark_of(prefix, key), '', 'PX', ms, 'NX') and true or false
end

-- The call was settled. It must not run because of an earlier request, because somebody without a signing key
-- restored its record and message, or because its record was lost in a jump of the server's clock.
local function mark_ended(prefix, key, ms, now)
  if is_marked(prefix, key) and not is_noted_as_shared(prefix, key) then return end
  local left = redis.call('PTTL', key)
  redis.call('SET', mark_of(prefix, key), string.format('%.0f', now + left), 'PX', math.max(left + SPARE_MS, ms))
end

-- A `no` that is read from a record promises that no earlier request runs. So the mark must last as long as the record,
-- which it may not do after a jump of the server's clock: extend it.
local function keep_mark_with(prefix, key, now)
  local ends = tonumber(redis.pcall('GET', mark_of(prefix, key)) or '')
  local last = now + redis.call('PTTL', key)
  if not ends or ends <= 0 or ends >= last then return end
  local left = redis.call('PTTL', mark_of(prefix, key))
  redis.call('SET', mark_of(prefix, key), string.format('%.0f', last), 'PX', math.max(left, last - now + SPARE_MS))
end

-- There may be many temporary refusals, so their marks are kept for a shorter time.
local REFUSED_MS = 900000

local function mark_refused(prefix, key, ends)
  redis.call('SET', mark_of(prefix, key), string.format('-%.0f', ends), 'PX', REFUSED_MS)
end

-- Records name the stream and may be foreign: a key of another prefix is never deleted.
local function send(stream, body)
  if type(redis.pcall('XADD', stream, '*', 'b', body)) == 'table' then
    local prefix = string.match(stream, '^(.*:)reply:[^:]*$')
    if not prefix or string.sub(KEYS[1], 1, #prefix) ~= prefix then return end
    call('XADD', stream, '*', 'b', body)
  end
  redis.call('PEXPIRE', stream, SPARE_MS)
end

-- Whether the dispatcher that reads a reply stream holds its lease: a string that begins with the ms at which it
-- ends. If no process confirmed fleet time for a while, dispatchers get some time to renew their leases.
local function is_alive(stream)
  local prefix, id = string.match(stream, '^(.*):reply:([^:]*)$')
  local lease = prefix and redis.pcall('GET', prefix .. ':dispatcher:' .. id)
  if not lease or type(lease) == 'table' then return type(lease) == 'table' end
  local ends = tonumber(string.match(lease, '^(%d+) ') or math.huge)
  return ends > certain_ms() or now_ms() - offset_of(after_gap) <= GAP_MS
end

local ASKERS = 16

-- Adds a reply stream to a record. If there are too many, those of dead dispatchers are dropped; a dispatcher
-- that finds no room gets no reply and has to poll.
local function attach(key, replies, stream)
  local noted = {}
  replies = replies or ''  -- of a foreign record
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

-- Ends a record: stores its first outcome, keeps it for the longer of `keep_ms` and `longer` (the record's `keep`), and
-- sends the outcome to every stream in `replies` but `except`.
local function end_record(key, nonce, keep_ms, longer, body, replies, except)
  redis.call('HSET', key, 'state', 'settled', 'settled_by', nonce, 'outcome', body)
  redis.call('PEXPIRE', key, math.max(tonumber(keep_ms), tonumber(longer or '0')))
  for stream in string.gmatch(replies, '%S+') do
    if stream ~= except then send(stream, body) end
  end
end

-- Reopens a temporarily refused call that never ran, since it was dispatched again. An approved call stays
-- approved. Returns its state; false if its record was deleted.
local function forget_refusal(key)
  if redis.call('HGET', key, 'approval') == 'approved' then
    redis.call('HDEL', key, 'outcome', 'settled_by', 'anew')
    redis.call('HSET', key, 'state', 'approved')
    return 'approved'
  end
  redis.call('DEL', key)
  return false
end
