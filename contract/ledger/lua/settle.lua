-- A worker ends calls (`close.lua` is the dispatchers' side): stores the first outcome and sends it to every dispatcher
-- that asked.
-- KEYS: record...
-- ARGV: for each record: nonce, keep ms, reply stream for a record that is gone, body
-- Returns for each record 'first', 'late' or 'gone' (the record was missing and is created).
local answers = {}
for i = 1, #KEYS do
  local at = i * 4 - 3
  local nonce, body = ARGV[at], ARGV[at + 3]
  local r = fields_of(KEYS[i], 'state', 'settled_by', 'replies', 'keep')
  if not r[1] then
    end_record(KEYS[i], nonce, ARGV[at + 1], nil, body, ARGV[at + 2], '')
    answers[i] = 'gone'
  elseif r[1] == 'settled' then
    answers[i] = (r[2] == nonce) and 'first' or 'late'
  else
    end_record(KEYS[i], nonce, ARGV[at + 1], r[4], body, r[3], '')
    answers[i] = 'first'
  end
end
return answers
