-- Stores the background call of a handle, and keeps the outcome of the call as long.
-- KEYS: background:{handle}, handles:{owner} ('' = not listed), record, epoch
-- ARGV: handle, body, kept ms, ms the list is kept, ms the outcome is kept
use_fleet_time(KEYS[4])
local now = now_ms()
redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
if KEYS[2] ~= '' then
  call('ZADD', KEYS[2], now, ARGV[1])
  redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - ARGV[4])
  redis.call('PEXPIRE', KEYS[2], ARGV[4])
end
local state, keep = unpack(fields_of(KEYS[3], 'state', 'keep'))
if state then
  redis.call('HSET', KEYS[3], 'handed_over', '1')
  if tonumber(keep or 0) < tonumber(ARGV[5]) then redis.call('HSET', KEYS[3], 'keep', ARGV[5]) end
  local needed = state == 'settled' and tonumber(ARGV[5]) or tonumber(ARGV[3])
  if redis.call('PTTL', KEYS[3]) < needed then redis.call('PEXPIRE', KEYS[3], needed) end
end
return {}
