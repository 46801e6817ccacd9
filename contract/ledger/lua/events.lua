-- Appends events to the fleet's stream. An entry's id consists of the stream's start time and the number of
-- the entry's last event, so that readers detect gaps.
-- KEYS: events
-- ARGV: body, how many events are in it, how many are kept, ms the stream is kept,
--       start and number of the last event that the publisher knows
-- If the server lacks that event, it has lost the stream, which begins again.
local body, count, kept = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local known_start, known = tonumber(ARGV[5]), tonumber(ARGV[6])
local newest = call('XREVRANGE', KEYS[1], '+', '-', 'COUNT', 1)[1]
local start, number = 0, 0
local YEAR_MS, MOST = 31536000000, 2 ^ 53
if newest then
  local s, n = string.match(newest[1], '^(%d+)-(%d+)$')
  start, number = tonumber(s), tonumber(n)
  if start > now_ms() + YEAR_MS or number > MOST then  -- foreign, and nothing can be added after it
    redis.call('DEL', KEYS[1])
    newest, start, number = nil, 0, 0
  end
end
if not newest or start < known_start or (start == known_start and number < known) then
  start = math.max(now_ms(), known_start + 1, start + 1)
  number = 0
end
number = number + count
local id = string.format('%.0f-%.0f', start, number)
call('XADD', KEYS[1], id, 'b', body, 'n', count)
if number > kept then
  redis.call('XTRIM', KEYS[1], 'MINID', string.format('%.0f-%.0f', start, number - kept))
end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return {id}
