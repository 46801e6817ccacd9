-- The failed calls of a session, newest last; a success removes its call.
-- KEYS: loop:{session}, loops (the stream of the sessions with failures)
-- ARGV: 'look' or 'note', kept ms, calls remembered, session,
--       then to look: digests; to note: digest and '1' (failed) or '0' (succeeded) for each call
-- 'look' returns for each digest how often it failed, and '1' if it alternates with another.
local what, kept_ms, remembered = ARGV[1], ARGV[2], tonumber(ARGV[3])
local answers = {}
if what == 'look' then
  local failed = call('LRANGE', KEYS[1], 0, -1)
  local n = #failed
  for i = 5, #ARGV do
    local count = 0
    for j = 1, n do
      if failed[j] == ARGV[i] then count = count + 1 end
    end
    local turns = n >= 3 and failed[n] ~= ARGV[i] and failed[n - 1] == ARGV[i]
      and failed[n - 2] == failed[n]
    answers[#answers + 1] = tostring(count)
    answers[#answers + 1] = turns and '1' or '0'
  end
  return answers
end
local any = false
for i = 5, #ARGV, 2 do
  if ARGV[i + 1] == '1' then
    call('RPUSH', KEYS[1], ARGV[i])
    any = true
  else
    call('LREM', KEYS[1], 0, ARGV[i])
  end
end
if any then
  redis.call('LTRIM', KEYS[1], -remembered, -1)
  redis.call('PEXPIRE', KEYS[1], kept_ms)
  call('XADD', KEYS[2], 'MAXLEN', '~', 10000, '*', 's', ARGV[4])
  redis.call('PEXPIRE', KEYS[2], kept_ms)
end
return answers
