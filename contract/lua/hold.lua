-- A worker says again which calls it runs: the server may have come back without its last claims.
-- Never starts anything: only the attempt that was claimed is held.
-- KEYS: record...
-- ARGV: worker, then for each record: attempt, nonce of its claim
-- Answers for each record 'held', 'settled', 'absent' or 'lost' (another attempt, or another's).
local worker = ARGV[1]
local answers = {}
for i = 1, #KEYS do
  local attempt, nonce = ARGV[i * 2], ARGV[i * 2 + 1]
  local r = redis.call('HMGET', KEYS[i], 'state', 'attempt', 'claimed')
  local answer = 'lost'
  if not r[1] then answer = 'absent'
  elseif r[1] == 'settled' then answer = 'settled'
  elseif r[1] == 'claimed' then
    if r[3] == nonce then answer = 'held' end
  elseif r[2] == attempt then
    redis.call('HSET', KEYS[i], 'state', 'claimed', 'claimed', nonce, 'worker', worker)
    redis.call('HINCRBY', KEYS[i], 'claims', 1)
    answer = 'held'
  end
  answers[i] = answer
end
return answers
