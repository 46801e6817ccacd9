-- Finds the run that equal calls share: one in flight, one whose result is still valid, or a new one under the
-- given key. A note only names a record; the state is in the record or in that of its last retry,
-- `<key>.<number>`.
-- KEYS: epoch, shared:{digest}...
-- ARGV: prefix of records, then for each in one string: the key of a new run, a key that must not be
--       joined ('-' = none), ms its tool may run, ms it may wait to be started, ms a result is valid,
--       ms this note is kept, 1 if earlier runs must not be used
-- The note: key, ms at which it was taken, then of the above: wait and run.
-- Returns for each three values: the key; 'new', 'open' or 'settled'; the outcome.
local DIGEST, MOST_RETRIES = 32, 1000
local records = ARGV[1]
use_fleet_time(KEYS[1])
local now = now_ms()

local function joined(noted, own, except, run_ms, cached_ms)
  local key, taken, wait_ms, its_run_ms = string.match(noted, '^(%S+) (%d+) (%d+) (%d+)$')
  if not key or key == except or string.sub(key, 1, DIGEST) ~= string.sub(own, 1, DIGEST) then
    return nil
  end
  local last, retry = key, 1
  while retry <= MOST_RETRIES and redis.call('EXISTS', records .. key .. '.' .. retry) == 1 do
    last, retry = key .. '.' .. retry, retry + 1
  end
  local record = redis.pcall('HMGET', records .. last, 'state', 'outcome')
  if record.err then return nil end
  if record[1] == 'settled' then
    if cached_ms == '0' then return nil end
    return {last, 'settled', record[2]}
  end
  -- The first dispatcher may not have sent its call yet; when the call's wait is over, the run counts as
  -- lost.
  local is_coming = record[1] or now - tonumber(taken) < tonumber(wait_ms)
  if not is_coming or tonumber(its_run_ms) < tonumber(run_ms) then return nil end
  return {last, 'open', ''}
end

local answers = {}
for i = 2, #KEYS do
  local own, except, run_ms, wait_ms, cached_ms, note_ms, anew = string.match(ARGV[i],
    '^(%S+) (%S+) (%d+) (%d+) (%d+) (%d+) (%d)$')
  local noted = redis.pcall('GET', KEYS[i])
  local answer
  if type(noted) == 'string' and anew ~= '1' then
    answer = joined(noted, own, except, run_ms, cached_ms)
  end
  if not answer then
    local note = string.format('%s %.0f %s %s', own, now, wait_ms, run_ms)
    redis.call('SET', KEYS[i], note, 'PX', note_ms)
    answer = {own, 'new', ''}
  end
  for _, word in ipairs(answer) do answers[#answers + 1] = word end
end
return answers
