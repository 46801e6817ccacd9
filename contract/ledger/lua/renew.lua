-- A worker renews the claims of the calls it runs, because the server may have lost them. Never starts
-- anything: only the claimed attempt is renewed.
-- KEYS: record...
-- ARGV: worker, prefix of marks, ms a mark is kept, then for each record: attempt, nonce of its claim,
--       1 if a second start does no harm
-- Returns for each record 'renewed', 'settled', 'absent' or 'lost' (another attempt, or another's).
local worker, marks, mark_ms = ARGV[1], ARGV[2], ARGV[3]
local answers = {}
for i = 1, #KEYS do
  local at = i * 3 + 1
  local attempt, nonce = ARGV[at], ARGV[at + 1]
  local r = fields_of(KEYS[i], 'state', 'attempt', 'claimed', 'claims')
  local answer = 'lost'
  if ARGV[at + 2] ~= '1' then mark(marks, KEYS[i], mark_ms) end
  if not r[1] then answer = 'absent'
  elseif r[1] == 'settled' then answer = 'settled'
  elseif r[1] == 'claimed' then
    if r[3] == nonce then answer = 'renewed' end
  elseif r[2] == attempt then
    redis.call('HSET', KEYS[i], 'state', 'claimed', 'claimed', nonce, 'worker', worker,
      'claims', (r[4] or 0) + 1)
    answer = 'renewed'
  end
  answers[i] = answer
end
return answers
