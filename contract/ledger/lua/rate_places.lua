-- Places under limits, for `rate.lua` and `claim.lua`: a sorted set for each limit, scored by expiry in ms.
-- `<call>` is held for a call that waits to be started. A started call is `<call>#<nonce>` under a limit with a
-- window, and `<call>#<nonce>@<worker>` under a limit on running calls, until its worker reports its end.
-- Times are by the server's clock, which is the same for all callers however long their requests take, unless it has
-- jumped.
local LONGEST_WINDOW_MS = 86400000
local RUNNING_KEY_MS = 604800000  -- longer than a call runs
local UNSEEN_MS = 20000

-- Whether a call waits to be started, or runs. A call whose worker has no lease counts as running for some
-- more time, even if it was answered: leases are missing after an outage or a jump of the clock, and threads
-- outlive their timeout. The end of that time is stored as a negative score.
local function is_under_way(set, root, member, score, at)
  local call, worker = string.match(member, '^(.*)#.*@(.*)$')
  if not worker then
    local r = redis.pcall('HMGET', root .. 'call:' .. member, 'state', 'until')
    if r[1] == 'open' then return tonumber(r[2] or 0) > at end
    return (not r[1] or r[1] == 'waiting' or r[1] == 'approved') and score > at
  end
  local lease = value_of(root .. 'worker:' .. worker)
  if lease and string.find(lease, '"ended":true', 1, true) then return false end
  if lease then
    if score < 0 then redis.call('ZADD', set, at, member) end
    return true
  end
  local r = redis.pcall('HMGET', root .. 'call:' .. call, 'state', 'worker')
  if r[1] and r[1] ~= 'claimed' and r[1] ~= 'settled' or r[2] and r[2] ~= worker then return false end
  if score >= 0 then redis.call('ZADD', set, -(at + UNSEEN_MS), member) end
  return score >= 0 or -score > at and -score <= at + 2 * UNSEEN_MS
end

-- Removes expired and invalid members. Another process may count with another window, for example a worker of
-- an earlier release.
local function clean(set, window, longest, at)
  if window > 0 then call('ZREMRANGEBYSCORE', set, '-inf', at) end
  call('ZREMRANGEBYSCORE', set, '(' .. string.format('%.0f', at + longest + LONGEST_WINDOW_MS), '+inf')
end

-- Frees the places that the dispatchers of ended calls did not free.
local function sweep(set, root, at)
  local found = redis.call('ZRANGE', set, 0, -1, 'WITHSCORES')
  for n = 1, #found, 2 do
    if not is_under_way(set, root, found[n], tonumber(found[n + 1]), at) then redis.call('ZREM', set, found[n]) end
  end
end

-- Keeps a set until its last member expires, even if the server's clock jumps.
local function keep_places(set, window, at)
  local last = redis.call('ZRANGE', set, -1, -1, 'WITHSCORES')[2]
  local left = window > 0 and math.max(0, (tonumber(last) or at) - at) + SPARE_MS or RUNNING_KEY_MS
  redis.call('PEXPIRE', set, math.ceil(left))
end
