-- A dispatcher ends calls: at their deadline (expire), or because nobody wants them (cancel).
-- KEYS: epoch, record...
-- ARGV: epoch candidate, caller's reply stream, cancel list prefix, dispatcher lease prefix,
--       'unstarted' (leave running calls alone), 'deadline' or 'cancel',
--       then for each record: nonce, epoch it was opened in, keep ms, outcome if never claimed,
--       outcome if claimed, outcome if nobody can know, cancel message
-- Answers for each record its outcome, 'running <worker>', 'others' (a living dispatcher waits for
-- it longer: the caller is told no more) or 'missing'.
local epoch = server_epoch(KEYS[1], ARGV[1])
local reply, cancels, leases, which = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local now = now_ms()

local function without_caller(replies)
  local others, alive = {}, false
  for stream in string.gmatch(replies, '%S+') do
    if stream ~= reply then
      others[#others + 1] = stream
      alive = alive or redis.call('EXISTS', leases .. string.match(stream, '[^:]*$')) == 1
    end
  end
  return table.concat(others, ' '), alive
end

local function others_wait(key, replies, until_ms, deadline_ms)
  local left = {cancel = 1, unstarted = until_ms - now, deadline = deadline_ms - now - 200}
  if left[which] <= 0 then return false end
  local others, alive = without_caller(replies)
  if alive then redis.call('HSET', key, 'replies', others) end
  return alive
end

local answers = {}
for i = 2, #KEYS do
  local at = 6 + (i - 2) * 7
  local r = redis.call('HMGET', KEYS[i], 'state', 'outcome', 'worker', 'epoch', 'claims', 'replies',
    'until', 'deadline')
  if not r[1] then
    answers[i - 1] = 'missing'
  elseif r[1] == 'settled' then
    answers[i - 1] = r[2]
  elseif r[1] == 'claimed' and which == 'unstarted' then
    answers[i - 1] = 'running ' .. r[3]
  elseif others_wait(KEYS[i], r[6], r[7], r[8]) then
    answers[i - 1] = 'others'
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
