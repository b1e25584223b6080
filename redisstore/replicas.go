package redisstore

import (
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
)

// evalReplicated runs a call and waits for replicas if its reply must not be lost.
// WAIT is about what its own connection has written, so both go over one, and the
// scripts that settle something always write. (Redis 7 waits for what others have
// written, too; that is not documented.)
func (s *Store) evalReplicated(c *call) (any, error) {
	const tries = 5
	for try := 0; ; try++ {
		node, err := s.nodeOf(c.key)
		if err != nil {
			return nil, err
		}
		reply, err := s.evalOn(node, c)
		cluster, ok := s.client.(*redis.ClusterClient)
		if err == nil || !ok || !movedAway(err) || try == tries-1 {
			return reply, err
		}
		cluster.ReloadState(background)
		select {
		case <-time.After(50 * time.Millisecond << try):
		case <-c.ctx.Done():
			return nil, c.ctx.Err()
		}
	}
}

// nodeOf returns a client of the server that has the key.
func (s *Store) nodeOf(key string) (*redis.Client, error) {
	switch client := s.client.(type) {
	case *redis.Client:
		return client, nil
	case *redis.ClusterClient:
		return client.MasterForKey(background, key)
	}
	return nil, errors.New("WithReplicas does not know this client") // New has refused it
}

// movedAway reports whether another server of the cluster has, or will have, the
// key.
func movedAway(err error) bool {
	for _, prefix := range []string{"MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "READONLY"} {
		if redis.HasErrorPrefix(err, prefix) {
			return true
		}
	}
	return false
}

func (s *Store) evalOn(node *redis.Client, c *call) (any, error) {
	conn := node.Conn()
	defer conn.Close()
	c.alone(conn)
	if c.err != nil || !c.script.settles(c.reply) {
		return c.reply, c.err
	}
	n, err := conn.Wait(background, s.opts.replicas, s.opts.patience).Result()
	switch {
	case err != nil:
		return nil, fmt.Errorf("wait for replicas: %w", err)
	case n < int64(s.opts.replicas):
		return nil, fmt.Errorf("only %d of %d replicas have acknowledged what the master did within %v", n, s.opts.replicas, s.opts.patience)
	}
	return c.reply, nil
}
