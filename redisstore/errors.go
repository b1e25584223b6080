package redisstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/oncehttp/oncehttp"
)

// explain says what to do about an error, where that is known. Redis 6 puts what
// went wrong in the middle of a script somewhere into the text of its error, so
// texts are searched.
func explain(what string, err error) error {
	wrap := func(advice string) error { return fmt.Errorf("redisstore: %s: %w: %s", what, err, advice) }
	text := err.Error()
	has := func(part string) bool { return strings.Contains(text, part) }
	var server redis.Error
	if errors.As(err, &server) {
		switch {
		case has("OOM command not allowed"):
			return fmt.Errorf("redisstore: %s: %w: Redis has reached its maxmemory: raise it, or let records expire sooner with a shorter Keep: %w",
				what, oncehttp.ErrFull, err)
		case has("READONLY"):
			return wrap("this server is a replica, or was the master before a failover: " +
				"connect to the master, by redis.NewFailoverClient or redis.NewClusterClient if it changes")
		case has("LOADING"):
			return wrap("it has just started, and answers when it has read its data from disk")
		case has("MOVED "), has("ASK "), has("CROSSSLOT"):
			return wrap("the server is a node of a cluster: use redis.NewClusterClient instead of redis.NewClient")
		case has("CLUSTERDOWN"), has("MASTERDOWN"), has("TRYAGAIN"):
			return wrap("some of the cluster's slots have no master that answers: look at CLUSTER INFO")
		case has("WRONGPASS"), has("NOAUTH"), has("invalid password"), has("invalid username-password"), has("AUTH <password> called"):
			return wrap("the client's Username and Password are not those of the server")
		case has("NOPERM"), has("The user executing the script"):
			return wrap("the store's user needs ~prefix* and &prefix*, and the commands EVAL, EVALSHA, SCRIPT LOAD, INFO, GET, GETRANGE, SET, SETRANGE, " +
				"DEL, PTTL, PEXPIRE, PUBLISH, SUBSCRIBE, UNSUBSCRIBE and SCAN")
		case has("MISCONF"):
			return wrap("the server cannot write to its disk, and takes no writes until it can")
		case has("NOREPLICAS"):
			return wrap("fewer replicas are connected than min-replicas-to-write asks for")
		case has("BUSY "):
			return wrap("somebody's script or module keeps the server from answering")
		case has("WRONGTYPE"):
			return wrap("something else uses keys with the store's prefix: name another one with WithPrefix")
		case has("max number of clients"):
			return wrap("raise the server's maxclients, or lower the clients' PoolSize")
		}
		return fmt.Errorf("redisstore: %s: %w", what, err)
	}
	var n net.Error
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, redis.ErrClosed):
	case errors.Is(err, redis.ErrPoolTimeout):
		return wrap("all connections of the client's pool are in use: raise PoolSize")
	case errors.As(err, &n) && n.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return wrap("the server has not answered within the client's timeout; whether it did what it was asked is not known")
	case dialed(err):
		return wrap("no server can be reached at this address")
	default:
		return wrap("the connection broke; whether the server did what it was asked is not known")
	}
	return fmt.Errorf("redisstore: %s: %w", what, err)
}

// dialed reports whether err is of a connection that never came to be.
func dialed(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
