package redisstore

import (
	"errors"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/oncehttp/oncehttp"
)

// On Redis 7 a claim needs no script when its key is free or done, which is nearly
// always: SET with NX and GET takes a free key, or returns the record of another
// one, and costs the server a fifth of what takeScript does. What is left of a done
// record is then told by the time of its expiry that it holds, and by what the store
// takes the server's clock to be. That is a PTTL less for each claim.

func (c *call) claim() *redis.Cmd {
	return redis.NewCmd(background, "set", c.key, c.args[0], "nx", "get", "px", c.args[1])
}

// claimed takes what became of it, as takeScript would say it. No reply means that
// the script has to be asked: a key that runs or is an orphan, a record that does not
// tell its time of expiry or cannot be read, and a full server, on which SET fails whatever there is.
func (c *call) claimed() {
	reply, err := c.cmd.Result()
	switch {
	case errors.Is(err, redis.Nil):
		c.reply = []any{int64(oncehttp.ClaimAcquired)}
		return
	case redis.HasErrorPrefix(err, "OOM"):
		return
	case err != nil:
		c.err = err
		return
	}
	v, ok := reply.(string)
	if !ok || !strings.HasPrefix(v, doneRecord) {
		return
	}
	if r, err := readRecord(v); err == nil && r.expires > 0 {
		left := max(int64(r.expires)-c.clock.now(), 1) // a clock may have been set
		c.reply = []any{int64(oncehttp.ClaimDone), left, v}
	}
}

// doneRecord is what done records begin with.
const doneRecord = string(rune(version)) + string(rune(stateDone))
