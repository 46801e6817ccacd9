-- A dispatcher ends calls, and stores `executed: no` here before it reports it. Why it ends them:
--   unstarted   no worker started them in time         deadline    their deadline is near
--   cancel      they were cancelled                    leave       it stops waiting for them
--   refused     it will not send them                  rejected    they are invalid, and it does not wait for them
--   unapproved  they were not approved in time         used        their approval was used without sending them
--   denied      they were sent, and may no longer start
--   restored    they had ended, or were sent, before the server lost that
-- KEYS: epoch, record...
-- ARGV: epoch candidate, caller's reply stream, cancel list prefix, prefix of marks, how the calls end (above; running
--       calls are left alone by 'unstarted', 'denied' and 'restored', the calls of others by 'refused' and 'rejected',
--       sent ones by 'restored' unless the caller knows their end), ms a mark
--       is kept, caller's fleet time in ms, then for each record:
--         nonce
--         epoch it was opened in; if it was not sent, accepted in
--         ms its outcome is kept
--         outcome if it was never claimed
--         outcome if it was claimed
--         outcome if that is not known
--         cancel message for its worker
--         1 if the caller has not sent it, or, for 'restored', knows how it ended
--         ms after which a refused call may be asked again; '' if not while its record is kept
--         1 to leave a mark for the time above, so that it cannot start later
-- Returns for each record its outcome, 'running <worker>', 'open', 'waiting' or 'approved' (left alone),
-- 'others' (a living dispatcher waits for it longer: the caller is no longer notified) or 'missing'.
local epoch = server_epoch(KEYS[1], ARGV[1])
local reply, cancels, marks, which, mark_ms = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6]
local now = certain_ms()  -- the clock may just have jumped
local caller_now = time_by(ARGV[7])

local function without_caller(replies)
  local others, alive = {}, false
  for stream in string.gmatch(replies, '%S+') do
    if stream ~= reply then
      others[#others + 1] = stream
      alive = alive or is_alive(stream)
    end
  end
  return table.concat(others, ' '), alive
end

-- Whether another living dispatcher was sent the outcome of the attempt before: it may retry the call, too.
local function others_retry(key)
  local root, number = string.match(key, '^(.*)%.(%d+)$')
  if which ~= 'leave' or not root then return false end
  local before = number == '1' and root or root .. '.' .. number - 1
  local replies = redis.pcall('HGET', before, 'replies')
  if type(replies) ~= 'string' then return false end
  local others, alive = without_caller(replies)
  if others ~= replies then redis.call('HSET', before, 'replies', others) end
  return alive
end

local function others_wait(key, replies, until_ms, deadline_ms, handed_over)
  if which == 'cancel' or which == 'denied' or which == 'restored' then return false end
  local left = {leave = 1, refused = 1, unstarted = until_ms - now, deadline = deadline_ms - now - 200}
  if left[which] <= 0 then return false end
  local others, alive = without_caller(replies)
  alive = alive or which == 'leave' and handed_over  -- a client with its handle may ask for it
  alive = others_retry(key) or alive
  if alive and which ~= 'refused' then redis.call('HSET', key, 'replies', others) end
  return alive
end

-- There is no record: create a settled one, so that the call cannot run after this answer.
local function settle_absent(key, nonce, opened_in, keep_ms, no, doubtful, unsent, anew_ms, life_ms)
  local is_early = awaits_reports(now)
  local is_new = unsent == '1' and opened_in == epoch and not is_marked(marks, key)
  local is_sure = is_new and not is_early
  local body = is_sure and no or doubtful
  redis.call('HSET', key, 'state', 'settled', 'epoch', is_early and '' or epoch, 'settled_by', nonce, 'outcome', body)
  redis.call('PEXPIRE', key, keep_ms)
  if not (is_new and which == 'refused' and anew_ms ~= '') then
    mark_ended(marks, key, life_ms, caller_now)
  else
    redis.call('HSET', key, 'anew', caller_now + anew_ms)
    if life_ms ~= 0 then mark_refused(marks, key, caller_now + anew_ms) end
  end
  return body
end

-- A call that is refused or rejected once more cannot run before this refusal's time is over.
local function prolong(key, keep_ms)
  if redis.call('PTTL', key) < tonumber(keep_ms) then redis.call('PEXPIRE', key, keep_ms) end
end

-- Dispatchers end waiting calls by their own clocks, which may be ahead by this much.
local EARLY_MS = 1000

-- The final approval state of a call that was not sent; nil if it continues.
local function approval_after(key, state, replies, is_for_now, handed_over)
  if which == 'cancel' or which == 'restored' then return 'cancelled' end
  if which == 'used' and state == 'approved' then return 'approved' end
  -- One dispatcher's timeout is not enough: others may wait longer.
  local is_over = tonumber(fields_of(key, 'state', 'expires')[2] or 0) <= now + (state == 'waiting' and EARLY_MS or 0)
  if (which == 'unapproved' or which == 'deadline') and is_over then return 'expired' end
  -- A refusal of an approved call ends this attempt for all: each would leave it to the others.
  local is_for_all = which == 'refused' and state == 'approved'
  if which == 'leave' or which == 'refused' or which == 'deadline' and state == 'approved' then
    if not is_for_all and others_wait(key, replies, 0, now + EARLY_MS, handed_over) then return nil end
    if which == 'deadline' then return 'expired' end
    if which == 'leave' or not is_for_now then return 'cancelled' end
    return state == 'approved' and 'approved' or nil
  end
end

local answers = {}
for i = 2, #KEYS do
  local at = 8 + (i - 2) * 10
  local life_ms = ARGV[at + 9] == '1' and mark_ms or 0
  local r = fields_of(KEYS[i], 'state', 'outcome', 'worker', 'epoch', 'claims', 'replies',
    'until', 'deadline', 'keep', 'anew', 'approval', 'handed_over', 'unsent_in')
  if not r[1] and (which == 'unstarted' or which == 'restored' and ARGV[at + 7] ~= '1') then
    answers[i - 1] = 'missing'
  elseif not r[1] and others_retry(KEYS[i]) then
    answers[i - 1] = 'others'
  elseif not r[1] then
    answers[i - 1] = settle_absent(KEYS[i], ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3],
      ARGV[at + 5], ARGV[at + 7], ARGV[at + 8], life_ms)
  elseif r[1] == 'settled' and (which == 'cancel' or which == 'rejected') and r[10] then  -- refused temporarily
    local is_sure = r[4] == epoch and not is_marked(marks, KEYS[i])
    local body = is_sure and ARGV[at + 3] or ARGV[at + 5]
    redis.call('HDEL', KEYS[i], 'anew')
    if r[11] then redis.call('HSET', KEYS[i], 'approval', 'cancelled') end
    end_record(KEYS[i], ARGV[at], math.max(ARGV[at + 2], redis.call('PTTL', KEYS[i])), r[9], body, '')
    mark_ended(marks, KEYS[i], life_ms, caller_now)
    answers[i - 1] = body
  elseif r[1] == 'settled' then
    if (which == 'refused' or which == 'rejected') and not r[10] then prolong(KEYS[i], ARGV[at + 2]) end
    keep_mark_with(marks, KEYS[i], caller_now)
    answers[i - 1] = r[2]
  elseif which == 'rejected' or which == 'restored' and (r[1] == 'claimed' or r[1] == 'open' and ARGV[at + 7] ~= '1') then
    answers[i - 1] = r[1] == 'claimed' and 'running ' .. r[3] or r[1]
  elseif r[1] == 'waiting' or r[1] == 'approved' then
    local approval = approval_after(KEYS[i], r[1], r[6], ARGV[at + 8] ~= '', r[12])
    if approval then
      local is_sure = (r[13] == epoch or which == 'used') and not is_marked(marks, KEYS[i])
      local body = is_sure and ARGV[at + 3] or ARGV[at + 5]
      if which == 'used' and not is_sure then approval = 'cancelled' end  -- it ended before
      redis.call('HSET', KEYS[i], 'approval', approval)
      if which == 'refused' and ARGV[at + 8] ~= '' then
        redis.call('HSET', KEYS[i], 'anew', caller_now + ARGV[at + 8])
      end
      -- An approved call may run in another attempt before its other dispatchers read this refusal: they
      -- check the record themselves.
      local told = approval ~= 'approved' and r[6] or ''
      end_record(KEYS[i], ARGV[at], math.max(ARGV[at + 2], redis.call('PTTL', KEYS[i])), r[9], body, told, reply)
      if approval ~= 'approved' then mark_ended(marks, KEYS[i], life_ms, caller_now) end
      answers[i - 1] = body
    elseif which == 'leave' or which == 'deadline' and r[1] == 'approved' then
      answers[i - 1] = 'others'
    else
      attach(KEYS[i], r[6], reply)
      answers[i - 1] = r[1]
    end
  elseif which == 'refused' or which == 'unapproved' or which == 'used' then
    attach(KEYS[i], r[6], reply)
    answers[i - 1] = r[1] == 'claimed' and 'running ' .. r[3] or 'open'
  elseif r[1] == 'claimed' and (which == 'unstarted' or which == 'denied') then
    answers[i - 1] = 'running ' .. r[3]
  elseif others_wait(KEYS[i], r[6], r[7], r[8], r[12]) then
    answers[i - 1] = 'others'
  else
    local body
    if r[1] == 'claimed' then
      body = ARGV[at + 4]
      call('RPUSH', cancels .. r[3], ARGV[at + 6])
      redis.call('PEXPIRE', cancels .. r[3], 60000)
    elseif r[5] == '0' and r[4] == epoch and ARGV[at + 1] == epoch and not is_marked(marks, KEYS[i]) then
      body = ARGV[at + 3]
    else
      body = ARGV[at + 5]
    end
    local is_for_now = which == 'denied' and body == ARGV[at + 3] and ARGV[at + 8] ~= ''
    if is_for_now then redis.call('HSET', KEYS[i], 'anew', caller_now + ARGV[at + 8]) end
    end_record(KEYS[i], ARGV[at], ARGV[at + 2], r[9], body, is_for_now and '' or r[6], reply)
    if life_ms == 0 or is_for_now and r[11] then
      -- it may be started again, or its approval is still good
    elseif is_for_now then
      mark_refused(marks, KEYS[i], caller_now + ARGV[at + 8])
    else
      mark_ended(marks, KEYS[i], life_ms, caller_now)
    end
    answers[i - 1] = body
  end
end
return answers
