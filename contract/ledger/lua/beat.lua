-- A worker renews its lease.
-- KEYS: epoch, worker:{id}, workers, catalog_version, toolsets, catalog
-- ARGV: epoch candidate, worker, lease, lease ms, seconds that workers are listed for, toolset ('' if the
--       worker is leaving), seconds that toolsets are listed for, three for `agree_on_time`, its liveness channel
-- Returns the epoch, the server's clock (ms), the value of the epoch key, the catalog's version ('' = none,
-- or no catalog), and how many clients are subscribed to the channel (-1 if the user may not ask).
agree_on_time(KEYS[1], ARGV[8], ARGV[9], ARGV[10])
local epoch, clock = server_epoch(KEYS[1], ARGV[1])
local now = now_ms()
redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
call('ZADD', KEYS[3], now / 1000, ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now / 1000 - ARGV[5])
redis.call('EXPIRE', KEYS[3], ARGV[5])
if ARGV[6] ~= '' then
  call('ZADD', KEYS[5], now / 1000, ARGV[6])
  redis.call('ZREMRANGEBYSCORE', KEYS[5], '-inf', now / 1000 - ARGV[7])
  redis.call('EXPIRE', KEYS[5], ARGV[7])
end
local version = redis.call('TYPE', KEYS[6]).ok == 'hash' and value_of(KEYS[4]) or ''
local subscribed = redis.pcall('PUBSUB', 'NUMSUB', ARGV[11])
return {epoch, tostring(now - fleet_offset), clock, version, subscribed.err and -1 or subscribed[2]}
