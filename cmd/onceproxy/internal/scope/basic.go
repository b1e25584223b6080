package scope

import (
	"bufio"
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/bcrypt"

	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/config"
)

const (
	maxHtpasswd = 4 << 20

	// bcrypt is slow on purpose, so a password that was right counts as right for a
	// while, and few are tried at the same time.
	remembered  = time.Minute
	maxVerified = 4096
	atOnce      = 4
)

// A basicScope verifies users and passwords (RFC 7617) with a file as htpasswd -B makes
// it.
type basicScope struct {
	hashes map[string][]byte
	decoy  []byte // what unknown users are compared with, so that they take as long
	secret [32]byte
	turn   chan struct{}

	mu       sync.Mutex
	verified map[[32]byte]time.Time // until when, by a digest of user and password
}

func newBasic(c *config.Basic) (Func, error) {
	hashes, err := readHtpasswd(c.Htpasswd)
	if err != nil {
		return nil, fmt.Errorf("scope.basic.htpasswd: %w", err)
	}
	s := &basicScope{hashes: hashes, turn: make(chan struct{}, atOnce), verified: map[[32]byte]time.Time{}}
	for _, h := range hashes {
		s.decoy = h
		break
	}
	rand.Read(s.secret[:])
	return s.name, nil
}

func readHtpasswd(name string) (map[string][]byte, error) {
	b, err := os.ReadFile(name)
	switch {
	case err != nil:
		return nil, err
	case len(b) > maxHtpasswd:
		return nil, fmt.Errorf("%s is larger than 4 MiB", name)
	}
	hashes := map[string][]byte{}
	lines := bufio.NewScanner(bytes.NewReader(b))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		user, hash, ok := strings.Cut(line, ":")
		if _, err := bcrypt.Cost([]byte(hash)); !ok || user == "" || err != nil {
			return nil, fmt.Errorf("%s:%d: this is not a user, a colon and a bcrypt hash; htpasswd -B makes one", name, n)
		}
		if hashes[user] != nil {
			return nil, fmt.Errorf("%s:%d: the user stands in an earlier line already", name, n)
		}
		hashes[user] = []byte(hash)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if len(hashes) == 0 {
		return nil, fmt.Errorf("%s has no user in it", name)
	}
	return hashes, nil
}

func (s *basicScope) name(r *http.Request) (string, error) {
	user, password, ok := r.BasicAuth()
	if !ok || len(r.Header["Authorization"]) != 1 {
		return "", s.refuse(errNoCredentials)
	}
	if err := s.verify(r, user, password); err != nil {
		return "", s.refuse(err)
	}
	return "basic:" + user, nil
}

func (s *basicScope) refuse(err error) error {
	return &Error{Challenge: `Basic realm="onceproxy", charset="UTF-8"`, Msg: "the right user and password are needed", Err: err}
}

var errWrongPassword = errors.New("the user or the password is wrong")

func (s *basicScope) verify(r *http.Request, user, password string) error {
	digest := s.digest(user, password)
	now := time.Now()
	s.mu.Lock()
	until, ok := s.verified[digest]
	s.mu.Unlock()
	if ok && now.Before(until) {
		return nil
	}
	hash := s.hashes[user]
	known := hash != nil
	if !known {
		hash = s.decoy
	}
	select {
	case s.turn <- struct{}{}:
	case <-r.Context().Done():
		return r.Context().Err()
	}
	err := bcrypt.CompareHashAndPassword(hash, []byte(password))
	<-s.turn
	if err != nil || !known {
		return errWrongPassword
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.verified) >= maxVerified {
		clear(s.verified)
	}
	s.verified[digest] = now.Add(remembered)
	return nil
}

// digest names a user and password without keeping them.
func (s *basicScope) digest(user, password string) (sum [32]byte) {
	mac := hmac.New(sha256.New, s.secret[:])
	fmt.Fprintf(mac, "%d:%s:%s", len(user), user, password)
	mac.Sum(sum[:0])
	return sum
}
