package redisstore

import (
	"crypto/sha1"
	"encoding/hex"
)

// A script is one in two forms. Redis 7 can be told to run it even when its memory
// is full; Redis 6 does not understand that.
type script struct {
	plain, modern       string
	plainSHA, modernSHA string

	// settles reports whether a reply says something that must not be lost.
	settles func(reply any) bool
}

// newScript returns a script that is refused, when memory is full, as soon as it
// writes something that needs more.
func newScript(text string) *script { return &script{text, text, digest(text), digest(text), nil} }

// newRescue returns a script that runs even when memory is full. It is for what
// concerns work that has already begun: Redis is then over its maxmemory by the
// answers of as many claims as were running.
func newRescue(text string) *script {
	modern := "#!lua flags=allow-oom\n" + text
	return &script{text, modern, digest(text), digest(modern), nil}
}

func digest(text string) string {
	sum := sha1.Sum([]byte(text))
	return hex.EncodeToString(sum[:])
}

func (sc *script) text(modern bool) string {
	if modern {
		return sc.modern
	}
	return sc.plain
}

func (sc *script) sha(modern bool) string {
	if modern {
		return sc.modernSHA
	}
	return sc.plainSHA
}

func (sc *script) settling(f func(reply any) bool) *script {
	sc.settles = f
	return sc
}

// What scripts return. Those of takeScript that are positive are values of
// oncehttp.ClaimStatus.
const (
	replyOK         int64 = 1
	replyFree       int64 = 0
	replyLost       int64 = -1
	replyUnreadable int64 = -2
	replyRefused    int64 = -3
)

// Pieces of scripts. A script reads as little as it needs: a body may be large. It
// goes by what is left of the record's expiry, which saves it a look at the clock,
// and gives numbers to Redis as text, which is how Redis wants them.
const (
	readHeader = `
local k = KEYS[1]
local h = redis.call('GETRANGE', k, '0', '115')
local readable = #h == 116 and string.byte(h) == 1
local done = string.byte(h, 2) == 68
`
	// For how long the record is what it is, and whether its lease still runs.
	readTimes = `
local lease, keep, holder, age = struct.unpack('>ddI4d', h, 21)
local since = math.max(lease, keep) + 1 - redis.call('PTTL', k)
local runs = not done and lease > 0 and since <= lease
`
	// The user may lack the right to publish, which must not fail the script:
	// whoever waits looks again by himself.
	wakeUp = `
if string.byte(h, 3) == 49 then redis.pcall('PUBLISH', k, '') end
`
	checkHolder = `
if h == '' then return 0 end
if not readable then return -2 end
if string.sub(h, 4, 20) ~= ARGV[1] then return -1 end
`
)

// takeScript is Claim and TakeOver. Arguments: the record of a free key, its time to
// live, whether orphans may be taken over, whether to write in any case. It returns
// a status, and but for a new record what is left of it and the record.
var takeScript = newScript(`
local k = KEYS[1]
local h = redis.call('GET', k)
if not h then
	redis.call('SET', k, ARGV[1], 'PX', ARGV[2])
	return {1}
end
if #h < 116 or string.byte(h) ~= 1 then return {-2} end
local done = string.byte(h, 2) == 68
if done then
	local ttl = redis.call('PTTL', k)
	if ARGV[4] == '1' and ttl > 0 then redis.call('PEXPIRE', k, ttl) end
	return {3, ttl, h}
end
` + readTimes + `
if string.sub(h, 4, 20) ~= string.sub(ARGV[1], 4, 20) then
	if runs then return {2, math.max(lease - since, 1), h} end
	if ARGV[3] ~= '1' then return {4, redis.call('PTTL', k), h} end
	holder = holder + 1
end
local mine = string.sub(ARGV[1], 4, 36) .. struct.pack('>I4d', holder, age + since)
redis.call('SETRANGE', k, '3', mine)
redis.call('PEXPIRE', k, ARGV[2])
return {1, 0, string.sub(h, 1, 3) .. mine .. string.sub(h, 49)}
`).settling(func(reply any) bool {
	parts, ok := reply.([]any)
	return ok && len(parts) > 0 && (parts[0] == int64(1) || parts[0] == int64(3))
})

// renewScript. Arguments: token, lease.
var renewScript = newRescue(readHeader + checkHolder + `
if done then return 1 end
` + readTimes + `
lease = tonumber(ARGV[2])
redis.call('SETRANGE', k, '20', struct.pack('>ddI4d', lease, keep, holder, age + since))
redis.call('PEXPIRE', k, string.format('%.0f', math.max(lease, keep) + 1))
if lease == 0 then` + wakeUp + `end
return 1
`)

// completeScript. Arguments: token, time to live, head and body, whether to write in
// any case, the time of expiry.
var completeScript = newRescue(readHeader + checkHolder + `
if done then
	if ARGV[4] == '1' then redis.call('SETRANGE', k, '0', '\1') end
	return 1
end
` + readTimes + `
redis.call('SET', k, '\1D0' .. ARGV[1] .. struct.pack('>ddI4d', ARGV[5], ARGV[2] - 1, holder, age + since) .. string.sub(h, 49, 112) .. ARGV[3], 'PX', ARGV[2])
` + wakeUp + `
return 1
`).settling(func(reply any) bool { return reply == replyOK })

// releaseScript. Argument: token.
var releaseScript = newRescue(readHeader + `
if h == '' then return 1 end
` + checkHolder + `
if done then return 1 end
redis.call('DEL', k)
` + wakeUp + `
return 1
`)

// flagScript notes that somebody waits for a running record and returns how long
// its lease still runs, or 0 if there is nothing to wait for.
var flagScript = newRescue(readHeader + `
if not readable or done then return 0 end
` + readTimes + `
if not runs then return 0 end
if string.byte(h, 3) ~= 49 then redis.call('SETRANGE', k, '2', '1') end
return math.max(lease - since, 1)
`)

// showScript. Argument: the last byte wanted, or -1. It returns what is left of the
// record, and the record.
var showScript = newScript(`
return {redis.call('PTTL', KEYS[1]), redis.call('GETRANGE', KEYS[1], '0', ARGV[1])}
`)

// resolveScript. Arguments: whether the effect happened, keep or 0 for that of the
// holder, head and body. The record's token becomes one that nobody has.
var resolveScript = newRescue(readHeader + `
if h == '' then return 0 end
if not readable then return -2 end
` + readTimes + `
if done or runs then return -3 end
if ARGV[1] == '1' then
	if ARGV[2] ~= '0' then keep = tonumber(ARGV[2]) end
	redis.call('SET', k, '\1D0' .. string.rep('\0', 17) .. struct.pack('>ddI4d', 0, keep, holder, age + since) .. string.sub(h, 49, 112) .. ARGV[3],
		'PX', string.format('%.0f', keep + 1))
else
	redis.call('DEL', k)
end
` + wakeUp + `
return 1
`)

// purgeScript deletes what cannot be read, too: that is what it may be needed for.
var purgeScript = newRescue(readHeader + `
if h == '' then return 0 end
if readable then
` + readTimes + `
	if runs then return -3 end
end
redis.call('DEL', k)
` + wakeUp + `
return 1
`)

var allScripts = []*script{takeScript, renewScript, completeScript, releaseScript, flagScript, showScript, resolveScript, purgeScript}
