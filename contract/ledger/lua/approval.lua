-- Calls that need approval. An approval is part of the call's record from the start. Times are given by the
-- caller in fleet time, because the server's clock may jump.
-- KEYS: epoch, waiting calls (by expiry), approved calls that were not sent (by when the next dispatcher may
--       take them over), record of the call
-- ARGV: what, epoch candidate, now (ms), then by what:
--   ask      nonce, reply stream, prefix of marks, ms a mark is kept, request, rerun, ms at which the
--            approval ends, ms the record is kept, ms an outcome is kept, ms at which it was asked, 1 if it may
--            have been asked before, epoch of an earlier attempt ('' = none), key, 1 if the server has lost its record
--            -> epoch, answer, the record
--   read     epoch in which the caller knows that it has not sent the call ('' = unknown), prefix of marks, reply
--            stream of a caller that waits for the call from now on ('' = it does not)
--            -> epoch, 'ran' if another dispatcher has sent or ended it, and the server lost that, the record
--   decide   state, decision, new expiry of the approval in ms, nonce, notice to dispatchers, outcome
--            if it cannot have run, outcome if it may have run ('' = it is approved), key, prefix of marks,
--            ms a mark is kept
--            -> 'done', or its current state
--   approved reply stream, ms until the next check, prefix of records -> keys of calls to continue
--   decline  reply stream, key: the caller does not send the call, so another dispatcher may
--   list     prefix of records, how many -> key and record of each
--   tell     -> 'first' for the first caller, who notifies of the end
-- A record is returned as: state, approval, request, decision, epoch, outcome.
-- The answer to `ask` is 'new', '' (see the record), 'ran' or 'moved' (as `open`).
local waiting, approved, key = KEYS[2], KEYS[3], KEYS[4]
local what, now = ARGV[1], tonumber(ARGV[3])
local LEFT_MS = 7200000

local function record_of(name)
  local r = redis.pcall('HMGET', name, 'state', 'approval', 'request', 'decision', 'epoch', 'outcome')
  if r.err then return nil end
  for i = 1, 6 do r[i] = r[i] or '' end
  return r
end

-- The given reply streams whose dispatchers are alive, and whether those are all of the given ones.
local function living(replies)
  local alive, are_all_alive = {}, true
  for stream in string.gmatch(replies, '%S+') do
    if is_alive(stream) then alive[#alive + 1] = stream else are_all_alive = false end
  end
  return table.concat(alive, ' '), are_all_alive
end

local function outlive(set, ms)
  if redis.call('PTTL', set) < tonumber(ms) then redis.call('PEXPIRE', set, ms) end
end

if what == 'ask' then
  local epoch = server_epoch(KEYS[1], ARGV[2])
  local nonce, reply, marks, mark_ms, request, rerun = unpack(ARGV, 4, 9)
  local ends, kept_ms, keep_ms, asked_at, again, tried_in = unpack(ARGV, 10, 15)
  local once = rerun ~= '1'
  local r = fields_of(key, 'state', 'anew', 'replies', 'opened', 'asker')
  if r[2] and tonumber(asked_at) > tonumber(r[2]) then r[1] = forget_refusal(key) end
  local answer = ''
  if not r[1] and once and tried_in ~= '' and tried_in ~= epoch then
    answer = 'moved'
  elseif not r[1] and (once and again == '1' or is_marked(marks, key, tonumber(asked_at))) then
    mark_again(marks, key, mark_ms)
    answer = 'ran'
  elseif not r[1] then
    redis.call('HSET', key, 'state', 'waiting', 'approval', 'waiting', 'epoch', epoch, 'opened', nonce,
      'attempt', 1, 'rerun', rerun, 'until', 0, 'deadline', 0, 'claims', 0, 'replies', reply,
      'request', request, 'expires', ends, 'asker', reply, 'keep', keep_ms)
    if awaits_reports(now) then
      redis.call('HSET', key, 'epoch', '')  -- another dispatcher may have sent it
    elseif ARGV[17] ~= '1' then
      redis.call('HSET', key, 'unsent_in', epoch)
    end
    redis.call('PEXPIRE', key, kept_ms)
    call('ZREMRANGEBYSCORE', waiting, '-inf', now - LEFT_MS)
    redis.call('ZADD', waiting, ends, ARGV[16])
    outlive(waiting, kept_ms)
    answer = 'new'
  elseif r[1] ~= 'settled' then
    attach(key, r[3] or '', reply)
    if not (r[5] and is_alive(r[5])) then redis.call('HSET', key, 'asker', reply) end
    if r[1] == 'approved' then call('ZADD', approved, 0, ARGV[16]) end
    if r[4] == nonce then answer = 'new' end
  end
  return {epoch, answer, unpack(record_of(key))}
elseif what == 'read' then
  local epoch = server_epoch(KEYS[1], ARGV[2])
  local r = record_of(key) or {'', '', '', '', '', ''}
  local answer = ''
  if r[1] == 'waiting' or r[1] == 'approved' then
    local f = fields_of(key, 'state', 'replies', 'unsent_in')
    local alive, are_all_alive = living(f[2])
    if ARGV[6] ~= '' then
      local known = r[5] == epoch and alive or f[2]
      if known ~= f[2] then redis.call('HSET', key, 'replies', known) end
      attach(key, known, ARGV[6])
    end
    if ARGV[4] == epoch and r[5] ~= epoch and has_mark(ARGV[5], key) then
      answer = 'ran'
    elseif ARGV[4] == epoch and r[5] ~= epoch then
      -- A dispatcher that is not alive may have sent the call before the server lost that information.
      if are_all_alive and f[3] == r[5] then redis.call('HSET', key, 'unsent_in', epoch) end
      redis.call('HSET', key, 'epoch', epoch)
      r[5] = epoch
    end
  end
  return {epoch, answer, unpack(r)}
elseif what == 'decide' then
  local epoch = server_epoch(KEYS[1], ARGV[2])
  local state, decision, ends, nonce, notice, no, doubtful = unpack(ARGV, 4, 10)
  local r = fields_of(key, 'state', 'approval', 'expires', 'unsent_in', 'replies', 'decision', 'keep')
  if r[6] == decision then return {'done'} end  -- the first reply was lost
  if r[1] ~= 'waiting' then return {r[2] or r[1] or 'gone'} end
  -- Nothing is written: the clock may be about to be corrected.
  if now >= tonumber(r[3] or 0) then return {'expired'} end
  redis.call('HSET', key, 'approval', state, 'decision', decision)
  call('ZREM', waiting, ARGV[11])
  for stream in string.gmatch(r[5] or '', '%S+') do send(stream, notice) end
  -- A handle that was returned while the call waited may be valid for as long as this.
  local kept_ms = math.max(redis.call('PTTL', key), tonumber(ends) - now + tonumber(r[7] or 0))
  if state == 'approved' then
    redis.call('HSET', key, 'state', 'approved', 'expires', ends, 'keep', string.format('%.0f', kept_ms))
    redis.call('PEXPIRE', key, kept_ms)
    call('ZADD', approved, 0, ARGV[11])
    redis.call('PEXPIRE', approved, kept_ms)
  else
    local is_sure = r[4] == epoch and not is_marked(ARGV[12], key)
    end_record(key, nonce, kept_ms, nil, is_sure and no or doubtful, r[5] or '', '')
    mark_ended(ARGV[12], key, ARGV[13], now)
  end
  return {'done'}
elseif what == 'approved' then
  use_fleet_time(KEYS[1])
  local reply, pause_ms, prefix = ARGV[4], ARGV[5], ARGV[6]
  local answers = {}
  for _, id in ipairs(call('ZRANGEBYSCORE', approved, '-inf', now, 'LIMIT', 0, 256)) do
    local r = redis.pcall('HMGET', prefix .. id, 'state', 'asker')
    if r.err or r[1] ~= 'approved' then
      redis.call('ZREM', approved, id)
    else
      redis.call('ZADD', approved, now + pause_ms, id)
      if r[2] == reply or not (r[2] and is_alive(r[2])) then
        redis.call('HSET', prefix .. id, 'asker', reply)
        answers[#answers + 1] = id
      end
    end
  end
  return answers
elseif what == 'decline' then
  local r = redis.pcall('HMGET', key, 'state', 'asker')
  if not r.err and r[1] == 'approved' and r[2] == ARGV[4] then
    redis.call('HDEL', key, 'asker')
    call('ZADD', approved, 0, ARGV[5])
  end
  return {}
elseif what == 'list' then
  local prefix, most = ARGV[4], tonumber(ARGV[5])
  local answers = {}
  for _, id in ipairs(call('ZRANGE', waiting, 0, -1)) do
    local r = record_of(prefix .. id)
    if not r or r[1] ~= 'waiting' then
      redis.call('ZREM', waiting, id)
    elseif #answers < most * 7 and tonumber(fields_of(prefix .. id, 'state', 'expires')[2] or 0) > now then
      answers[#answers + 1] = id
      for i = 1, 6 do answers[#answers + 1] = r[i] end
    end
  end
  return answers
else  -- tell
  if redis.call('EXISTS', key) == 0 then return {''} end
  return {redis.call('HSETNX', key, 'told', '1') == 1 and 'first' or ''}
end
