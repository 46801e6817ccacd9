-- Equal calls ask for the run that they share: one that goes on, one whose result is still good, or a new
-- one under the key that they bring. What is noted here only names a record; the record is what counts.
-- KEYS: shared:{digest}...
-- ARGV: prefix of records, then for each in one string: the key of a new run, a key that is not to be
--       joined ('-' = none), ms its tool may run, ms it may wait to be started, ms its outcome is kept,
--       ms a result is good for, ms this note is kept, 1 where nothing from before may be used
-- The note: key, ms at which it was taken, then of the above: run, wait and outcome kept.
-- Answers for each three words: the key; 'new', 'open' or how many ms its outcome is old; the outcome.
local DIGEST = 32
local records = ARGV[1]
local now = now_ms()

local function joined(noted, own, except, run_ms, cached_ms)
  local key, taken, wait_ms, its_run_ms, kept_ms =
    string.match(noted, '^(%S+) (%d+) (%d+) (%d+) (%d+)$')
  if not key or key == except or string.sub(key, 1, DIGEST) ~= string.sub(own, 1, DIGEST) then
    return nil
  end
  local record = redis.pcall('HMGET', records .. key, 'state', 'outcome', 'keep')
  if record.err then return nil end
  if record[1] == 'settled' then
    local kept = math.max(tonumber(kept_ms), tonumber(record[3] or '0'))
    local age = math.max(0, kept - redis.call('PTTL', records .. key))
    if age >= tonumber(cached_ms) then return nil end
    return {key, tostring(age), record[2]}
  end
  -- Whoever took a key may still hold its call back; long after that it is gone.
  local is_coming = record[1] or now - tonumber(taken) < tonumber(wait_ms)
  if not is_coming or tonumber(its_run_ms) < tonumber(run_ms) then return nil end
  return {key, 'open', ''}
end

local answers = {}
for i = 1, #KEYS do
  local own, except, run_ms, wait_ms, kept_ms, cached_ms, note_ms, anew = string.match(ARGV[i + 1],
    '^(%S+) (%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d)$')
  local noted = redis.pcall('GET', KEYS[i])
  local answer
  if type(noted) == 'string' and anew ~= '1' then
    answer = joined(noted, own, except, run_ms, cached_ms)
  end
  if not answer then
    local note = string.format('%s %.0f %s %s %s', own, now, wait_ms, run_ms, kept_ms)
    redis.call('SET', KEYS[i], note, 'PX', note_ms)
    answer = {own, 'new', ''}
  end
  for _, word in ipairs(answer) do answers[#answers + 1] = word end
end
return answers
