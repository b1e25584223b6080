// Package history is a stand-in for the checks that a model's provider makes before it
// takes a conversation: it reads the bodies of requests as they were sent, and knows no SDK. Tests of
// the adapters use it.
//
// The rules, of all three APIs unless one is named:
//
//   - Every call is answered exactly once, directly after the message that makes it.
//   - No answer is to an id that no call has. No two calls have the same id.
//   - Ids and names of tools are of the characters and the length that the API takes.
//   - Arguments are a JSON object, or the text of a custom tool.
//   - Messages: tool_result blocks come first in their turn, which may be of several messages.
//   - Chat, Messages: an assistant's message is not empty.
//   - Responses: behind reasoning comes the item that it led to.
//   - Tools are defined wherever a conversation has calls, or a tool choice is made.
//   - What was sent once is sent again unchanged.
//   - After a request that allows no tool call, one answer comes, and then the user.
package history

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
)

// An API is one of those that a conversation can be sent to.
type API string

const (
	Chat      API = "chat completions" // OpenAI, POST /v1/chat/completions
	Responses API = "responses"        // OpenAI, POST /v1/responses
	Messages  API = "messages"         // Anthropic, POST /v1/messages
)

// A part is a message, or a piece of one, as the rules see it.
type part struct {
	kind  kind
	raw   string // compact
	leads bool   // it is reasoning, which does not stand alone
	calls []call
	ids   []string // that are answered
}

type kind string

const (
	user      kind = "user"
	assistant kind = "assistant"
	answers   kind = "answers"
)

type call struct {
	id, name string
	args     string
	free     bool // a text, not JSON
}

// A request is the body of one.
type request struct {
	parts   []part
	tools   int
	choice  bool // a tool choice is made
	closing bool // and it is none
}

// Check holds one request against the rules. The error names the first that is broken.
func Check(api API, body []byte) error {
	_, err := check(api, body)
	return err
}

func check(api API, body []byte) (*request, error) {
	if !json.Valid(body) {
		return nil, errors.New("the body is no JSON")
	}
	r, err := parse(api, body)
	if err != nil {
		return nil, err
	}
	return r, r.check(api)
}

var idForm = map[API]*regexp.Regexp{
	Chat:      regexp.MustCompile(`^[^\x00-\x20]{1,40}$`),
	Responses: regexp.MustCompile(`^[^\x00-\x20]{1,64}$`),
	Messages:  regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`),
}

var nameForm = map[API]*regexp.Regexp{
	Chat:      regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`),
	Responses: regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`),
	Messages:  regexp.MustCompile(`^[a-zA-Z0-9_-]{1,128}$`),
}

func (r *request) check(api API) error {
	known := map[string]bool{} // ids of calls
	open := map[string]bool{}  // those without an answer
	var last kind              // of the part before
	for i, p := range r.parts {
		fail := func(format string, args ...any) error {
			return fmt.Errorf("%s, part %d (%s): %s", api, i, p.kind, fmt.Sprintf(format, args...))
		}
		// Items of one response follow one another, as do messages of one role in Messages.
		together := p.kind == assistant && last == assistant && api != Chat
		if p.kind != answers && len(open) > 0 && !together {
			return fail("a call before it has no answer")
		}
		for _, c := range p.calls {
			switch {
			case !idForm[api].MatchString(c.id):
				return fail("a call's id is missing or malformed: %q", c.id)
			case known[c.id]:
				return fail("a call's id was used before: %q", c.id)
			case !nameForm[api].MatchString(c.name):
				return fail("a tool's name is malformed: %q", c.name)
			case !c.free && !object(c.args):
				return fail("a call's arguments are no JSON object: %q", c.args)
			}
			known[c.id], open[c.id] = true, true
		}
		for _, id := range p.ids {
			switch {
			case open[id]:
				delete(open, id)
			case known[id]:
				return fail("a second answer, or a late one, to %q", id)
			default:
				return fail("an answer to an id that no call has: %q", id)
			}
		}
		if next := r.parts[min(i+1, len(r.parts)-1)]; p.leads && (i+1 == len(r.parts) || next.kind != assistant) {
			return fail("it is reasoning without the item that it led to")
		}
		last = p.kind
	}
	switch {
	case len(open) > 0:
		return fmt.Errorf("%s: a call has no answer", api)
	case len(known) > 0 && r.tools == 0:
		return fmt.Errorf("%s: there are calls, and no tool is defined", api)
	case r.choice && r.tools == 0:
		return fmt.Errorf("%s: a tool choice is made, and no tool is defined", api)
	case last == assistant:
		return fmt.Errorf("%s: the assistant has the last word, so there is nothing to answer", api)
	}
	return nil
}

func object(s string) bool {
	return json.Valid([]byte(s)) && bytes.HasPrefix(bytes.TrimSpace([]byte(s)), []byte("{"))
}

// A Log is given the requests of one conversation in the order in which they are sent. Its
// zero value is not ready: set API.
type Log struct {
	API API

	before   *request
	body     string
	requests int
	closings int
}

// Sent holds a request against all rules, those between two requests included.
func (l *Log) Sent(body []byte) error {
	r, err := check(l.API, body)
	if err != nil {
		return err
	}
	if l.before != nil && l.body != string(body) { // the same again is a retry
		if err := l.follows(r); err != nil {
			return fmt.Errorf("%s, request %d: %w", l.API, l.requests+1, err)
		}
	}
	if l.body != string(body) {
		l.requests++
		if r.closing {
			l.closings++
		}
	}
	l.before, l.body = r, string(body)
	return nil
}

// Closing reports whether the last request allowed no calls.
func (l *Log) Closing() bool { return l.before != nil && l.before.closing }

// Requests returns how many different requests were sent, and how many of them allowed no calls.
func (l *Log) Requests() (all, closing int) { return l.requests, l.closings }

func (l *Log) follows(r *request) error {
	old := l.before.parts
	if len(r.parts) <= len(old) {
		return errors.New("the conversation did not grow")
	}
	for i, p := range old {
		if p.raw != r.parts[i].raw {
			return fmt.Errorf("part %d is not what it was", i)
		}
	}
	if !l.before.closing {
		return nil
	}
	var last kind
	for _, p := range r.parts[len(old):] {
		switch {
		case p.kind == user:
			return nil // the next turn
		case p.kind == assistant && (last == answers || last == assistant && l.API == Chat):
			return errors.New("a second answer of the model after the closing request")
		}
		last = p.kind
	}
	return errors.New("the turn goes on after the closing request")
}
