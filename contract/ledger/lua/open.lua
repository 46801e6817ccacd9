-- Creates or joins call records and, if the broker is this server, publishes their message.
-- KEYS: epoch, queue list, record...
-- ARGV: epoch candidate, nonce, reply stream, message ('' = published elsewhere), epoch of an earlier
--       attempt that may have been accepted ('' = none), prefix of marks, ms a mark is kept, then
--       for each record in one string: attempt, whether it may run twice (0 no, 1 yes, 2 yes, but
--       never beside itself), wait ms, deadline ms (both from now), keep ms,
--       the server's ms at which it was asked, 1 if it may have been asked before, 1 if it was
--       approved
-- Returns the epoch, then for each record: 'new', 'open' or 'running <worker>' (attached), 'moved'
-- (it may have run in an earlier epoch: that of the earlier attempt, or one that processes still report), 'ran' (it may have run; its end is unknown),
-- 'waiting' or 'approved' (it needs approval, or has it, and the caller does not say so: attached),
-- 'lapsed' (its approval has expired), or its outcome.
local epoch = server_epoch(KEYS[1], ARGV[1])
local nonce, reply, message, tried_in = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local marks, mark_ms = ARGV[6], ARGV[7]
local now = now_ms()
local answers = {epoch}
local is_early = awaits_reports(now)
local longest_wait = 0
local created = false
for i = 3, #KEYS do
  local attempt, rerun, wait_ms, deadline_ms, keep_ms, asked_at, again, approved = string.match(
    ARGV[i + 5], '^(%d+) (%d) (%-?%d+) (%-?%d+) (%-?%d+) (%-?%d+) (%d) (%d)$')
  local once, exclusive = rerun == '0', rerun == '2'
  local record = fields_of(KEYS[i], 'state', 'opened', 'outcome', 'replies', 'worker',
    'until', 'deadline', 'anew', 'expires', 'epoch')
  if record[8] and tonumber(asked_at) > tonumber(record[8]) then
    record[1] = forget_refusal(KEYS[i])
  end
  if not record[1] and once and tried_in ~= '' and tried_in ~= epoch then
    answers[i - 1] = 'moved'
  elseif not record[1] and (approved == '1' or once and again == '1'
      or is_marked(marks, KEYS[i], tonumber(asked_at))
      and (once or not is_noted_as_shared(marks, KEYS[i]))) then
    mark_again(marks, KEYS[i], mark_ms)  -- an approved call has a record, or had one
    answers[i - 1] = 'ran'
  elseif not record[1] and (once or exclusive) and is_early then
    answers[i - 1] = 'moved'
  elseif not record[1] then
    redis.call('HSET', KEYS[i], 'state', 'open', 'epoch', epoch, 'opened', nonce,
      'attempt', attempt, 'rerun', once and '0' or '1', 'until', now + wait_ms,
      'deadline', now + deadline_ms, 'claims', 0, 'replies', reply)
    if is_early then redis.call('HSET', KEYS[i], 'epoch', '', 'goes_on', epoch) end  -- it may have run before
    redis.call('PEXPIRE', KEYS[i], keep_ms)
    created = true
    longest_wait = math.max(longest_wait, tonumber(wait_ms))
    answers[i - 1] = 'new'
  elseif record[1] == 'settled' then
    keep_mark_with(marks, KEYS[i], now)
    answers[i - 1] = record[3]
  elseif record[2] == nonce then
    answers[i - 1] = 'new'
  elseif record[1] == 'waiting' or (record[1] == 'approved' and approved == '0') then
    attach(KEYS[i], record[4], reply)
    answers[i - 1] = record[1]
  elseif record[1] == 'approved' and once and record[10] ~= epoch then
    answers[i - 1] = 'moved'
  elseif record[1] == 'approved' and tonumber(record[9] or 0) <= now then
    answers[i - 1] = 'lapsed'
  elseif record[1] == 'approved' then
    attach(KEYS[i], record[4], reply)
    redis.call('HSET', KEYS[i], 'state', 'open', 'epoch', epoch, 'opened', nonce, 'attempt', attempt,
      'until', now + wait_ms, 'deadline', now + deadline_ms)
    if redis.call('PTTL', KEYS[i]) < tonumber(keep_ms) then
      redis.call('PEXPIRE', KEYS[i], keep_ms)
    end
    created = true
    longest_wait = math.max(longest_wait, tonumber(wait_ms))
    answers[i - 1] = 'new'
  else
    attach(KEYS[i], record[4], reply)
    -- Earlier dispatchers may be dead: the latest deadline counts.
    redis.call('HSET', KEYS[i], 'until', math.max(record[6], now + wait_ms),
      'deadline', math.max(record[7], now + deadline_ms))
    if redis.call('PTTL', KEYS[i]) < tonumber(keep_ms) then
      redis.call('PEXPIRE', KEYS[i], keep_ms)
    end
    answers[i - 1] = record[1] == 'claimed' and 'running ' .. record[5] or 'open'
  end
end
if created then push(KEYS[2], message, longest_wait) end
return answers
