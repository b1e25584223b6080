package page

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// A session lasts this long, and there are this many at most: the oldest goes first.
const (
	sessionLife = 12 * time.Hour
	maxSessions = 64
)

// sessions are those who have shown the token. A cookie holds a random name of the
// session, not the token, because browsers send it to every port of the machine.
type sessions struct {
	secret [32]byte // makes form tokens
	mu     sync.Mutex
	ends   map[[32]byte]time.Time // by the digest of the name
}

func newSessions() *sessions {
	s := &sessions{ends: map[[32]byte]time.Time{}}
	rand.Read(s.secret[:])
	return s
}

// begin makes a session and returns its name.
func (s *sessions) begin(now time.Time) string {
	name := rand.Text()
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.ends) >= maxSessions {
		var oldest [32]byte
		first := now.Add(2 * sessionLife)
		for id, end := range s.ends {
			if end.Before(first) {
				oldest, first = id, end
			}
		}
		delete(s.ends, oldest)
	}
	s.ends[sha256.Sum256([]byte(name))] = now.Add(sessionLife)
	return name
}

func (s *sessions) has(name string, now time.Time) bool {
	id := sha256.Sum256([]byte(name))
	s.mu.Lock()
	defer s.mu.Unlock()
	end, ok := s.ends[id]
	if ok && !now.Before(end) {
		delete(s.ends, id)
		return false
	}
	return ok
}

func (s *sessions) end(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.ends, sha256.Sum256([]byte(name)))
}

// formToken is what every form of a session carries. Who can have a browser send a
// form cannot read it.
func (s *sessions) formToken(name string) string {
	mac := hmac.New(sha256.New, s.secret[:])
	mac.Write([]byte(name))
	return hex.EncodeToString(mac.Sum(nil))
}

// cookieName has the port in it, because cookies are shared by all ports of a host, and
// two proxies on one machine would sign each other's operator out.
func cookieName(r *http.Request) string {
	_, port, err := net.SplitHostPort(r.Host)
	if err != nil {
		port = "80"
	}
	return "onceproxy-" + port
}

// A visitor is who asks.
type visitor struct {
	known   bool
	session string // "": the token came with the request itself
}

func (p *page) visitor(r *http.Request) visitor {
	if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return visitor{known: isSecret(token, p.token)}
	}
	for _, c := range r.CookiesNamed(cookieName(r)) {
		if p.sessions.has(c.Value, time.Now()) {
			return visitor{true, c.Value}
		}
	}
	return visitor{}
}

// signIn answers whoever shows the token, in a link or a form.
func (p *page) signIn(w http.ResponseWriter, r *http.Request) {
	if !isSecret(r.FormValue("token"), p.token) {
		p.askToken(w, r, "This is not the token.")
		return
	}
	setCookie(w, r, p.sessions.begin(time.Now()), int(sessionLife/time.Second))
	http.Redirect(w, r, "/", http.StatusSeeOther) // an address without the token
}

func (p *page) signOut(w http.ResponseWriter, r *http.Request, v visitor) {
	p.sessions.end(v.session)
	setCookie(w, r, "", -1)
	http.Redirect(w, r, "/", http.StatusSeeOther)
}

// setCookie cannot ask for a secure connection: there is none on a loopback address.
func setCookie(w http.ResponseWriter, r *http.Request, value string, life int) {
	http.SetCookie(w, &http.Cookie{Name: cookieName(r), Value: value, Path: "/", MaxAge: life, HttpOnly: true, SameSite: http.SameSiteStrictMode})
}

func (p *page) askToken(w http.ResponseWriter, r *http.Request, wrong string) {
	w.Header().Set("WWW-Authenticate", "Bearer")
	p.show(w, r, visitor{}, http.StatusUnauthorized, "token", view{Title: "Sign in", Wrong: wrong})
}
