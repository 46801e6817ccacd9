-- A worker takes calls it has free slots for. Never creates a record.
-- KEYS: epoch, record...
-- ARGV: epoch candidate, worker, prefix of marks, ms a mark is kept, version of the switches that the worker
--       knows ('' = they are not looked at), then for each record: attempt, nonce
-- Answers for each record the ms left to its deadline, or why it was not won.
local epoch = server_epoch(KEYS[1], ARGV[1])
local worker, marks, mark_ms = ARGV[2], ARGV[3], ARGV[4]
local is_stale = ARGV[5] ~= '' and ARGV[5] ~= switch_version
local now = now_ms()
local answers = {}
for i = 2, #KEYS do
  local attempt, nonce = ARGV[i * 2 + 2], ARGV[i * 2 + 3]
  local r = redis.call('HMGET', KEYS[i], 'state', 'attempt', 'claimed', 'until', 'deadline', 'epoch', 'rerun',
    'goes_on', 'claims')
  local answer
  if not r[1] then answer = 'absent'
  elseif r[1] == 'settled' then answer = 'settled'
  elseif r[2] ~= attempt then answer = 'attempt'
  elseif r[1] == 'claimed' then
    answer = (r[3] == nonce) and tostring((r[5] or now) - now) or 'claimed'
  elseif r[1] ~= 'open' then answer = r[1]  -- nobody has approved it, or nobody has sent it since
  elseif tonumber(r[4] or 0) <= now then answer = 'expired'
  elseif r[6] ~= epoch and r[7] ~= '1' and r[8] ~= epoch then answer = 'moved'
  elseif is_stale then answer = 'stale'
  else
    redis.call('HSET', KEYS[i], 'state', 'claimed', 'claimed', nonce, 'worker', worker,
      'claims', (r[9] or 0) + 1)
    if r[7] ~= '1' then mark(marks, KEYS[i], mark_ms) end
    answer = tostring((r[5] or now) - now)
  end
  answers[i - 1] = answer
end
return answers
