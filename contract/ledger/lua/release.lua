-- A worker gives back claimed calls that it will not run, for another worker in the next attempt.
-- KEYS: record...
-- ARGV: worker, releases at most, prefix of marks, then for each record: nonce of its claim, message for
--       the dispatchers, keep ms, outcome if it was released too often, 1 if it entered user code
-- Returns for each record 'released' or 'late'.
local worker, most, marks = ARGV[1], tonumber(ARGV[2]), ARGV[3]
local answers = {}
for i = 1, #KEYS do
  local at = 4 + (i - 1) * 5
  local r = fields_of(KEYS[i], 'state', 'claimed', 'attempt', 'releases', 'replies', 'keep', 'claims')
  if r[1] == 'claimed' and r[2] == ARGV[at] then
    local releases = tonumber(r[4] or '0') + 1
    if releases > most then
      end_record(KEYS[i], ARGV[at], ARGV[at + 2], r[6], ARGV[at + 3], r[5], '')
    else
      redis.call('HSET', KEYS[i], 'state', 'open', 'attempt', tonumber(r[3]) + 1, 'worker', '',
        'releases', releases, 'released', ARGV[at])
      if ARGV[at + 4] == '0' then
        local claims = (r[7] or 0) - 1
        redis.call('HSET', KEYS[i], 'claims', claims)
        if claims == 0 then redis.call('DEL', mark_of(marks, KEYS[i])) end
      end
      for stream in string.gmatch(r[5], '%S+') do send(stream, ARGV[at + 1]) end
    end
    answers[i] = 'released'
  else
    local done = fields_of(KEYS[i], 'released', 'settled_by')
    local is_ours = done[1] == ARGV[at] or done[2] == ARGV[at]
    answers[i] = is_ours and 'released' or 'late'
  end
end
return answers
