-- Changes a kill switch, if given, and reads all.
-- KEYS: epoch, switches
-- ARGV: epoch candidate; for a change also: the switch's field, its state before ('' = none), its new state,
--       an unused version
-- Returns the epoch and the version, then the field and state of each. The change was made if its field has the new state.
local epoch = server_epoch(KEYS[1], ARGV[1])
if ARGV[2] and (call('HGET', KEYS[2], ARGV[2]) or '') == ARGV[3] then
  redis.call('HSET', KEYS[2], ARGV[2], ARGV[4])
  switch_version = ARGV[5]
  redis.call('SET', KEYS[1], epoch_value())
end
local answers = call('HGETALL', KEYS[2])
table.insert(answers, 1, epoch .. ' ' .. switch_version)
return answers
