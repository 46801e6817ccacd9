-- Restarts calls whose message or worker a dispatcher believes lost, if they may run again.
-- KEYS: epoch, queue list ('' = published elsewhere), record...
-- ARGV: epoch candidate, reply stream, attempts at most, prefix of marks, then for each record: nonce, lost worker
--       ('' = only the message may be lost), presumed attempt, ms to be claimed within,
--       message of this attempt, message of the next ('' = its worker's loss ends it), keep ms, outcome if
--       its worker is lost, 1 if its worker had time to report it in this epoch, epoch it was opened in
-- The record keeps its epoch: whether the call ran before the epoch changed is unknown.
-- Returns for each record 'sent' (published again, same attempt), 'again <attempt>',
-- 'running <worker>', its outcome, 'moved' (another epoch: not published again), 'unclaimed' (its record is
-- gone, and it was never claimed: it may be opened again), 'missing', 'waiting' or 'approved' (not sent).
local epoch = server_epoch(KEYS[1], ARGV[1])
local reply, most, marks = ARGV[2], tonumber(ARGV[3]), ARGV[4]
local now = now_ms()
local answers = {}
for i = 3, #KEYS do
  local at = 5 + (i - 3) * 10
  local nonce, lost, attempt = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  local r = fields_of(KEYS[i], 'state', 'attempt', 'worker', 'epoch', 'rerun', 'outcome',
    'recovered', 'replies', 'goes_on', 'until', 'deadline', 'keep')
  local until_ms = math.max(tonumber(r[10] or 0), now + ARGV[at + 3])
  local may_go = r[4] == epoch or r[5] == '1' or r[9] == epoch
  local answer
  if r[1] and r[1] ~= 'settled' then r[8] = attach(KEYS[i], r[8], reply) end
  if not r[1] then
    local is_sure = ARGV[at + 9] == epoch and not has_mark(marks, KEYS[i])
    answer = is_sure and 'unclaimed' or 'missing'
  elseif r[1] == 'settled' then
    answer = r[6]
  elseif r[7] == nonce then
    answer = 'again ' .. r[2]
  elseif r[1] == 'waiting' or r[1] == 'approved' then
    answer = r[1]
  elseif r[1] == 'open' then
    if tonumber(r[2]) > attempt then
      answer = 'again ' .. r[2]
      if tonumber(r[2]) == attempt + 1 and may_go then
        redis.call('HSET', KEYS[i], 'until', until_ms, 'goes_on', epoch)
        push(KEYS[2], ARGV[at + 5], ARGV[at + 3])
      end
    elseif may_go or ARGV[at + 8] == '1' then
      -- The server's clock may have jumped, so the caller's clock decides.
      redis.call('HSET', KEYS[i], 'until', until_ms, 'deadline', math.max(tonumber(r[11]), until_ms), 'goes_on', epoch)
      push(KEYS[2], ARGV[at + 4], ARGV[at + 3])
      answer = 'sent'
    else
      answer = 'moved'
    end
  elseif lost == '' or r[3] ~= lost then
    answer = 'running ' .. r[3]
  elseif r[5] == '1' and tonumber(r[2]) < most and ARGV[at + 5] ~= '' then
    redis.call('HSET', KEYS[i], 'state', 'open', 'attempt', tonumber(r[2]) + 1, 'worker', '',
      'until', until_ms, 'recovered', nonce, 'goes_on', epoch)
    push(KEYS[2], ARGV[at + 5], ARGV[at + 3])
    answer = 'again ' .. (tonumber(r[2]) + 1)
  else
    end_record(KEYS[i], nonce, ARGV[at + 6], r[12], ARGV[at + 7], r[8], reply)
    answer = ARGV[at + 7]
  end
  answers[i - 2] = answer
end
return answers
