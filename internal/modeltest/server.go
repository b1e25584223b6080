package modeltest

import (
	"encoding/json"
	"io"
	"net/http"
	"sync"

	"github.com/oncehttp/oncehttp/internal/history"
)

// A Server is the model of one conversation, as a provider would serve it. It holds every request against the
// rules of package history before it answers.
type Server struct {
	API history.API
	// Next is the model: what it says to the n-th different request, from 1 on. closing is whether the
	// request allows no tool call.
	Next func(n int, closing bool) Answer

	mu      sync.Mutex
	log     history.Log
	bodies  [][]byte
	answers []Answer
	errs    []error
}

// ServeHTTP implements [http.Handler]. A conversation that breaks a rule is answered 400.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log.API = s.API
	s.bodies = append(s.bodies, body)
	if err := s.log.Sent(body); err != nil {
		s.errs = append(s.errs, err)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusBadRequest)
		io.WriteString(w, `{"type":"error","error":{"type":"invalid_request_error","message":"the conversation is malformed"}}`)
		return
	}
	n, _ := s.log.Requests()
	if n > len(s.answers) { // not the repeat of a request
		s.answers = append(s.answers, s.Next(n, s.log.Closing()))
	}
	var asked struct{ Stream bool }
	_ = json.Unmarshal(body, &asked)
	answer, kind := write(s.API, s.answers[n-1], n, asked.Stream)
	w.Header().Set("Content-Type", kind)
	w.Write(answer)
}

// Errs returns the rules that requests broke.
func (s *Server) Errs() []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.errs
}

// Bodies returns the requests as they were sent.
func (s *Server) Bodies() [][]byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bodies
}

// Requests returns how many different requests there were, and how many of them allowed no call.
func (s *Server) Requests() (all, closing int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Requests()
}
