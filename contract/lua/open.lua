-- Notes calls and, where the broker is this server, publishes their message with them.
-- KEYS: epoch, queue list, record...
-- ARGV: epoch candidate, nonce, reply stream, message ('' = published elsewhere), epoch of an earlier
--       try that may have been taken ('' = there was none), then for each record: attempt, rerun,
--       wait ms, deadline ms (both from now), keep ms
-- Answers the epoch, then for each record: 'new', 'open' or 'running <worker>' (attached), 'moved'
-- (it may have run in the epoch of the earlier try), or the outcome it has.
local epoch = server_epoch(KEYS[1], ARGV[1])
local nonce, reply, message, tried_in = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local now = now_ms()
local answers = {epoch}
local created = false
for i = 3, #KEYS do
  local at = 6 + (i - 3) * 5
  local record = redis.call('HMGET', KEYS[i], 'state', 'opened', 'outcome', 'replies', 'worker',
    'until', 'deadline')
  if not record[1] and tried_in ~= '' and tried_in ~= epoch and ARGV[at + 1] ~= '1' then
    answers[i - 1] = 'moved'
  elseif not record[1] then
    redis.call('HSET', KEYS[i], 'state', 'open', 'epoch', epoch, 'opened', nonce,
      'attempt', ARGV[at], 'rerun', ARGV[at + 1], 'until', now + ARGV[at + 2],
      'deadline', now + ARGV[at + 3], 'claims', 0, 'replies', reply)
    redis.call('PEXPIRE', KEYS[i], ARGV[at + 4])
    created = true
    answers[i - 1] = 'new'
  elseif record[1] == 'settled' then
    answers[i - 1] = record[3]
  elseif record[2] == nonce then
    answers[i - 1] = 'new'
  else
    attach(KEYS[i], record[4], reply)
    -- Whoever asked before may be dead: the call lives as long as the last one to ask allows.
    redis.call('HSET', KEYS[i], 'until', math.max(record[6], now + ARGV[at + 2]),
      'deadline', math.max(record[7], now + ARGV[at + 3]))
    if redis.call('PTTL', KEYS[i]) < tonumber(ARGV[at + 4]) then
      redis.call('PEXPIRE', KEYS[i], ARGV[at + 4])
    end
    answers[i - 1] = record[1] == 'claimed' and 'running ' .. record[5] or 'open'
  end
end
if created and message ~= '' then
  redis.call('LPUSH', KEYS[2], message)
end
return answers
