-- Marks calls that share a run. Such a call has no record of its own, but must not count as a call that never
-- ran.
-- KEYS: epoch, record...
-- ARGV: prefix of marks, ms the notes are kept
-- Returns the state of each record; '' if there is none, and the call is noted, 'shared' if it was noted before.
use_fleet_time(KEYS[1])
local answers = {}
for i = 2, #KEYS do
  local state = fields_of(KEYS[i], 'state')[1]
  if not state and is_noted_as_shared(ARGV[1], KEYS[i]) then
    state = SHARED
  elseif not state and not is_marked(ARGV[1], KEYS[i]) then
    redis.call('SET', mark_of(ARGV[1], KEYS[i]), SHARED, 'PX', ARGV[2])
  end
  answers[i - 1] = state or ''
end
return answers
