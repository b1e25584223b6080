package main

import (
	"bytes"
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/oncehttp/oncehttp/internal/services"
)

// why says of a program that is missing why it cannot be installed.
var why = map[string]error{}

// TestMain installs what the clients are written in, where that can be done.
func TestMain(m *testing.M) {
	for program, pkg := range map[string]string{"curl": "curl", "python3": "python3", "node": "nodejs"} {
		if _, err := services.Program(program, pkg); err != nil {
			why[program] = err
		}
	}
	os.Exit(m.Run())
}

func TestEachLanguageRefundsOnceThroughTheProxy(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var out bytes.Buffer
	ok, err := run(ctx, &out)
	if err != nil {
		t.Fatal(err)
	}
	if !ok {
		t.Errorf("the example says that the promise did not hold:\n%s", &out)
	}
	for _, c := range clients {
		t.Run(c.name, func(t *testing.T) {
			if missing := c.missing(); missing != "" {
				t.Skip(why[missing])
			}
			if !strings.Contains(out.String(), c.name+" ") || !strings.Contains(out.String(), `{"refunded":"proxy-`) {
				t.Errorf("there is no answer of it:\n%s", &out)
			}
		})
	}
}

// Without a server that keeps keys the same programs refund more than once, so the
// network does lose replies, and the count can be wrong.
func TestTheCountCanBeWrong(t *testing.T) {
	pay := newPayments()
	defer pay.close()
	good := result{client: clients[0], direct: 3, proxy: 1, sent: lost + 1, answer: `{"refunded":"x"}`}
	if !good.held() {
		t.Error("a good result is judged bad")
	}
	for name, change := range map[string]func(r *result){
		"the proxy sent it twice":         func(r *result) { r.proxy = 2 },
		"nothing was refunded":            func(r *result) { r.proxy = 0 },
		"no reply was lost":               func(r *result) { r.sent = 1 },
		"the direct way did no harm":      func(r *result) { r.direct = 1 },
		"the program was told of a fault": func(r *result) { r.answer = `{"title":"unknown"}` },
	} {
		r := good
		change(&r)
		if r.held() || report(new(bytes.Buffer), []*result{&r}) {
			t.Errorf("%s, and the promise is said to have held", name)
		}
	}
	if report(new(bytes.Buffer), []*result{{client: clients[0], missing: "curl"}}) {
		t.Error("nothing ran, and the promise is said to have held")
	}
	if clients[0].missing() != "" {
		t.Skip(why["curl"])
	}
	r := &result{client: clients[0]}
	if err := r.compare(t.Context(), "..", pay, pay.addr(), 0); err == nil {
		t.Error("a script that is not there ran")
	}
	if err := r.compare(t.Context(), ".", pay, pay.addr(), 0); err != nil || r.proxy != lost+1 {
		t.Errorf("straight to the server twice: %d refunds, %v; want %d", r.proxy, err, lost+1)
	}
}
