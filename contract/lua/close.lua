-- A dispatcher ends calls: at their deadline (expire), or because nobody wants them (cancel).
-- KEYS: epoch, record...
-- ARGV: epoch candidate, caller's reply stream, cancel list prefix, 'unstarted' (leave running
--       calls alone) or 'all', then for each record: nonce, epoch it was opened in, keep ms,
--       outcome if never claimed, outcome if claimed, outcome if nobody can know, cancel message
-- Answers for each record its outcome, 'running <worker>' or 'missing'.
local epoch = server_epoch(KEYS[1], ARGV[1])
local reply, cancels, which = ARGV[2], ARGV[3], ARGV[4]
local answers = {}
for i = 2, #KEYS do
  local at = 5 + (i - 2) * 7
  local r = redis.call('HMGET', KEYS[i], 'state', 'outcome', 'worker', 'epoch', 'claims', 'replies')
  if not r[1] then
    answers[i - 1] = 'missing'
  elseif r[1] == 'settled' then
    answers[i - 1] = r[2]
  elseif r[1] == 'claimed' and which == 'unstarted' then
    answers[i - 1] = 'running ' .. r[3]
  else
    local body
    if r[1] == 'claimed' then
      body = ARGV[at + 4]
      redis.call('RPUSH', cancels .. r[3], ARGV[at + 6])
      redis.call('PEXPIRE', cancels .. r[3], 60000)
    elseif r[5] == '0' and r[4] == epoch and ARGV[at + 1] == epoch then
      body = ARGV[at + 3]
    else
      body = ARGV[at + 5]
    end
    settle(KEYS[i], ARGV[at], ARGV[at + 2], body, r[6], reply)
    answers[i - 1] = body
  end
end
return answers
