package main

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
)

// A lossy network carries one request for each connection. It loses the first
// replies: they are read to the end, so that the work behind them is done, and then
// the connection is cut.
type lossy struct {
	listener net.Listener
	to       string
	left     atomic.Int32 // replies to lose
	count    atomic.Int32
	all      sync.WaitGroup
}

func newLossy(to string, lose int) (*lossy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	n := &lossy{listener: l, to: to}
	n.left.Store(int32(lose))
	n.all.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			n.all.Go(func() { n.carry(conn) })
		}
	})
	return n, nil
}

func (n *lossy) addr() string { return n.listener.Addr().String() }
func (n *lossy) carried() int { return int(n.count.Load()) }
func (n *lossy) close()       { n.listener.Close(); n.all.Wait() }

func (n *lossy) carry(conn net.Conn) {
	defer conn.Close()
	req, err := http.ReadRequest(bufio.NewReader(conn))
	if err != nil {
		return
	}
	up, err := net.Dial("tcp", n.to)
	if err != nil {
		return
	}
	defer up.Close()
	n.count.Add(1)
	req.Close = true // one request, one connection
	if req.Write(up) != nil {
		return
	}
	reply, err := io.ReadAll(up)
	if err != nil || n.left.Add(-1) >= 0 {
		return // lost
	}
	conn.Write(reply)
}
