-- One check of one token bucket, decided and charged in one step.
--
-- KEYS[1] the bucket: a hash with the limit that decides (n, d, burst), its version, and
--         the state (level, at). A key that is missing is a full bucket.
-- ARGV    n        units that come back in a microsecond, 0 never
--         d        units in a token
--         burst    tokens in a full bucket
--         version  of the limit, 20 digits
--         cost     tokens: 0 looks, below 0 gives back
--         charge   1 to take the tokens whether the bucket has them or not
--         idle     milliseconds of silence after which a bucket that never refills goes
--
-- Returns allowed (1 or 0), burst, remaining, and in microseconds retry_after and
-- reset_after, -1 standing for never.
--
-- Every number is an integer that a double holds exactly: burst * d is at most 2^51, so
-- that a level, a debt and what is between them stay far below 2^53.

local n, d, burst = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local version, cost = ARGV[4], tonumber(ARGV[5])
local charge, idle = ARGV[6] == '1', tonumber(ARGV[7])

-- A version has 64 bits, more than a number holds, so its halves are compared.
local function newer(a, b)
  local high, low = tonumber(a:sub(1, 10)), tonumber(a:sub(11))
  local bhigh, blow = tonumber(b:sub(1, 10)), tonumber(b:sub(11))
  return high > bhigh or (high == bhigh and low > blow)
end

-- The time that units take to come back, rounded up.
local function wait(units)
  if units <= 0 then return 0 end
  if n == 0 then return -1 end
  return math.ceil(units / n)
end

-- Turns a deficit from tokens of od units into tokens of d units, rounded up and never
-- above the capacity. The rest of a token is converted bit by bit, since a product of
-- two such numbers would not be exact.
local function convert(deficit, od)
  local tokens = math.floor(deficit / od)
  local rest = deficit - tokens * od
  if tokens >= burst then return burst * d end
  local quotient, remainder, bits, bit = 0, 0, d, 2 ^ 51
  while bit >= 1 do
    quotient, remainder = quotient * 2, remainder * 2
    if bits >= bit then
      bits, remainder = bits - bit, remainder + rest
    end
    while remainder >= od do
      quotient, remainder = quotient + 1, remainder - od
    end
    bit = bit / 2
  end
  if remainder > 0 then quotient = quotient + 1 end
  return tokens * d + quotient
end

local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]

local held = redis.call('HMGET', KEYS[1], 'n', 'd', 'burst', 'version', 'level', 'at')
local level = burst * d
if held[1] then
  local on, od, oburst = tonumber(held[1]), tonumber(held[2]), tonumber(held[3])
  local units, at = tonumber(held[5]), tonumber(held[6])
  now = math.max(now, at) -- a clock that went back changes nothing
  local missing = oburst * od - units
  -- Divided before anything is multiplied, so that no product is too large. A bucket
  -- that is full again is no bucket: what its limit was does not matter any more.
  if on == 0 or now - at < math.ceil(missing / on) then
    missing = missing - on * (now - at)
    if newer(version, held[4]) then
      if n ~= on or d ~= od or burst ~= oburst then
        missing = convert(missing, od)
      end
    else
      n, d, burst, version = on, od, oburst, held[4]
    end
    level = burst * d - missing
  end
end
local capacity = burst * d

local allowed, retry = 1, 0
if charge then
  if cost > 2 * burst then
    level = -capacity
  else
    level = math.min(math.max(level - cost * d, -capacity), capacity)
  end
elseif cost > burst then
  allowed, retry = 0, -1
elseif cost < 0 then
  if -cost > math.floor((capacity - level) / d) then
    level = capacity
  else
    level = level - cost * d
  end
elseif cost > 0 then
  if level >= cost * d then
    level = level - cost * d
  else
    allowed, retry = 0, wait(cost * d - level)
  end
end

local remaining, reset = 0, wait(capacity - level)
if level > 0 then remaining = math.floor(level / d) end

if level < capacity then
  local function digits(number) return string.format('%.0f', number) end
  local gone = math.ceil(now / 1000) + idle
  if reset >= 0 then gone = math.ceil((now + reset) / 1000) end
  redis.call('HSET', KEYS[1], 'n', digits(n), 'd', digits(d), 'burst', digits(burst),
    'version', version, 'level', digits(level), 'at', digits(now))
  redis.call('PEXPIREAT', KEYS[1], digits(gone))
elseif held[1] then
  redis.call('DEL', KEYS[1])
end
return {allowed, burst, remaining, retry, reset}
