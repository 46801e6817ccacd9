-- A dispatcher renews its lease and reads the fleet's state, also if the server refuses writes.
-- KEYS: epoch, dispatcher:{id}, workers, dispatchers, queue...
-- ARGV: epoch candidate, its signed report ('' = not listed), lease ms, prefix of worker leases,
--       seconds that workers are listed for, its id, three for `agree_on_time`, liveness channel...
-- Returns the epoch, the server's clock (ms), the value of the epoch key, bytes in use, maxmemory (0 = no
-- limit), how many leases follow, the leases, how many messages wait on each queue, and how many clients are
-- subscribed to each channel (nothing if the user may not ask).
agree_on_time(KEYS[1], ARGV[7], ARGV[8], ARGV[9])
local epoch, clock = server_epoch(KEYS[1], ARGV[1])
local now = now_ms()
-- The clock may just have jumped, or the server may have stood still since this request was sent.
local renewed = math.max(now, tonumber(ARGV[7]) or now)
redis.pcall('SET', KEYS[2], string.format('%.0f %s', renewed + ARGV[3], ARGV[2]), 'PX', ARGV[3] + SPARE_MS)
if ARGV[2] ~= '' then
  call('ZCARD', KEYS[4])
  redis.pcall('ZADD', KEYS[4], now, ARGV[6])
  redis.pcall('ZREMRANGEBYSCORE', KEYS[4], '-inf', now - ARGV[3])
  redis.pcall('PEXPIRE', KEYS[4], ARGV[3])
end
local memory = redis.call('INFO', 'memory')
local leases = {}
for _, worker in ipairs(call('ZRANGEBYSCORE', KEYS[3], now / 1000 - ARGV[5], '+inf')) do
  local lease = value_of(ARGV[4] .. worker)
  if lease then leases[#leases + 1] = lease end
end
local answers = {epoch, tostring(now - fleet_offset), clock, string.match(memory, 'used_memory:(%d+)') or '0',
  string.match(memory, 'maxmemory:(%d+)') or '0', tostring(#leases)}
for _, lease in ipairs(leases) do answers[#answers + 1] = lease end
for i = 5, #KEYS do answers[#answers + 1] = tostring(call('LLEN', KEYS[i])) end
if #ARGV > 9 then
  local counts = redis.pcall('PUBSUB', 'NUMSUB', unpack(ARGV, 10))
  for i = 2, counts.err and 0 or #counts, 2 do answers[#answers + 1] = tostring(counts[i]) end
end
return answers
