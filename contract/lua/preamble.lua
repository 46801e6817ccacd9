-- Before every step: the server's clock, its epoch, and how replies are sent.
--
-- A call record is a hash:
--   state    open | claimed | settled
--   epoch    the server epoch it was opened in      until     last ms at which it may be claimed
--   deadline ms by which the caller is answered     attempt   the attempt that may claim it
--   goes_on  a later epoch, in which it may be claimed all the same
--   rerun    1 where a second start does no harm    claims    how often it was claimed
--   replies  reply streams, space separated         worker    who claimed it
--   opened / claimed / settled_by                   nonces: the same step sent again gets its answer again
--   outcome  the signed first outcome

local REPLY_STREAM_MS = 3600000

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- Changes with restart and failover (run_id) and with lost data (the random key).
local function server_epoch(key, candidate)
  local random = redis.call('GET', key)
  if not random then  -- never the same twice: the same client may be the first after every loss
    random = candidate .. table.concat(redis.call('TIME'), '.')
    redis.call('SET', key, random)
  end
  return string.match(redis.call('INFO', 'server'), 'run_id:(%w+)') .. '.' .. random
end

local function push(queue, message)
  if queue ~= '' then redis.call('LPUSH', queue, message) end
end

local function send(stream, body)
  redis.call('XADD', stream, '*', 'b', body)
  redis.call('PEXPIRE', stream, REPLY_STREAM_MS)
end

-- Notes a reply stream on a record; of more than eight the oldest, likely dead, is dropped.
local function attach(key, replies, stream)
  local noted = 0
  for known in string.gmatch(replies, '%S+') do
    if known == stream then return replies end
    noted = noted + 1
  end
  if noted >= 8 then replies = string.match(replies, '%S+%s+(.*)') end
  replies = replies .. ' ' .. stream
  redis.call('HSET', key, 'replies', replies)
  return replies
end

local function settle(key, nonce, keep_ms, body, replies, except)
  redis.call('HSET', key, 'state', 'settled', 'settled_by', nonce, 'outcome', body)
  redis.call('PEXPIRE', key, keep_ms)
  for stream in string.gmatch(replies, '%S+') do
    if stream ~= except then send(stream, body) end
  end
end
