-- Stores the whole output of a call within its session's share, dropping the oldest outputs. If the server
-- is short of memory, outputs are dropped first.
-- KEYS: output:{handle} ('' = store nothing, only free memory), outputs, outputs:{owner}, epoch
-- ARGV: prefix of outputs, handle, body, kept ms, bytes a session may keep, share of the server's memory
--       that may be in use
-- Returns 'kept' or 'full'.
local outputs, handle, body, kept_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local most, share = tonumber(ARGV[5]), tonumber(ARGV[6])
local OUTPUTS_AT_ONCE = 256
use_fleet_time(KEYS[4])
local now = now_ms()

local function is_short(more)
  local memory = redis.call('INFO', 'memory')
  local limit = tonumber(string.match(memory, 'maxmemory:(%d+)') or '0')
  local used = tonumber(string.match(memory, 'used_memory:(%d+)') or '0')
  return limit > 0 and used + more > limit * share
end

local function drop_oldest(list)
  local oldest = call('ZPOPMIN', list)
  if not oldest[1] then return nil end
  local name, size = string.match(oldest[1], '^(.*):(%d+)$')
  if name then redis.call('DEL', outputs .. name) end
  return tonumber(size) or 0
end

local dropped = 0
while dropped < OUTPUTS_AT_ONCE and is_short(#body) and drop_oldest(KEYS[2]) do dropped = dropped + 1 end
if KEYS[1] == '' then return {'kept'} end
if is_short(#body) or #body > most then return {'full'} end

local total = #body
for _, member in ipairs(call('ZRANGE', KEYS[3], 0, -1)) do
  if redis.call('EXISTS', outputs .. (string.match(member, '^(.*):%d+$') or '')) == 1 then
    total = total + tonumber(string.match(member, ':(%d+)$'))
  else
    redis.call('ZREM', KEYS[3], member)
  end
end
while total > most do
  local size = drop_oldest(KEYS[3])
  if not size then break end
  total = total - size
end
local member = handle .. ':' .. #body
redis.call('SET', KEYS[1], body, 'PX', kept_ms)
for _, list in ipairs({KEYS[2], KEYS[3]}) do
  call('ZADD', list, now, member)
  redis.call('PEXPIRE', list, kept_ms)
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - kept_ms)
return {'kept'}
