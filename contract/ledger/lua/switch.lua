-- Changes kill switches, if any are given, and reads all.
-- KEYS: epoch, switches
-- ARGV: epoch candidate; for changes also: an unused version, then for each: the switch's field, its state before
--       ('' = none), its new state
-- Returns the epoch and the version, then the field and state of each. A change was made if its field has the new state.
local epoch = server_epoch(KEYS[1], ARGV[1])
for i = 3, #ARGV, 3 do
  if (call('HGET', KEYS[2], ARGV[i]) or '') == ARGV[i + 1] then
    redis.call('HSET', KEYS[2], ARGV[i], ARGV[i + 2])
    switch_version = ARGV[2]
  end
end
if switch_version == ARGV[2] then redis.call('SET', KEYS[1], epoch_value()) end
local answers = call('HGETALL', KEYS[2])
table.insert(answers, 1, epoch .. ' ' .. switch_version)
return answers
