package main

// A mutant is a deliberate mistake in the product: a piece of one of its files,
// which stands there once, and what takes its place. None of them is harmless.
type mutant struct {
	name     string // what it does wrong
	file     string
	old, new string
}

// mutants are what the laboratory has to notice.
var mutants = []mutant{
	// The store.
	{"a stale token is as good as the holder's", "memstore.go",
		`	if r != nil && !s.holds(r, op.Token) {
		s.mu.Unlock()`,
		`	if r != nil && !s.holds(r, op.Token) && r.holder == 1 {
		s.mu.Unlock()`},
	{"a lapsed lease makes the key free", "memstore.go",
		`case now < r.lapses || !orphans:`,
		`case now < r.lapses:`},
	{"a running key can be taken over", "memstore.go",
		`case now < r.lapses || !orphans:`,
		`case !orphans:`},
	{"a takeover does not rotate the token", "memstore.go",
		`memSetName(&s.table, r, s.table.keyOf(r), op.Token)
		r.holder++`,
		`r.holder++`},
	{"a repeated claim does not know its own token", "memstore.go",
		`	case s.holds(r, op.Token):
	case now`,
		`	case now`},
	{"a record vanishes with its lease", "memstore.go",
		`s.table.schedule(r, max(lease, keep), now)`,
		`s.table.schedule(r, max(lease, 1), now)`},
	{"an answer is kept no longer than a lease", "memstore.go",
		`	s.table.schedule(r, keep, now)
	s.wake(r)`,
		`	s.table.schedule(r, min(keep, max(time.Second, r.lapses-now)), now)
	s.wake(r)`},
	{"a renewal does not extend the lease", "memstore.go",
		`		s.extend(r, lease, r.keep, now)
		if`,
		`		s.extend(r, min(lease, max(0, r.lapses-now)), r.keep, now)
		if`},
	{"an orphan stays for ever", "memstore.go",
		`	r.lapses = memLater(now, lease)`,
		`	if keep *= 100; lease > 0 {
		r.lapses = memLater(now, lease)
	}`},

	// Once.
	{"a claim is asked again under another token", "once.go",
		`		r.unanswered = true
		r.tookOver = r.tookOver || takeOver`,
		`		r.op.Token = NewToken()
		r.tookOver = r.tookOver || takeOver`},
	{"a claim that was lost on its way is released once only", "once_later.go",
		`	enough, last := u.how == untilDone || since >= lease, since >= end`,
		`	enough, last := true, since >= end`},
	{"a claim without an answer is not released", "once.go",
		`	case err != nil && r.unanswered:
		o.undo(r, forWholeLease)`,
		`	case err != nil && r.unanswered:`},
	{"work without an answer from the store is not refused", "once.go",
		`	return Claim{}, fmt.Errorf("%w: %w", ErrStoreUnavailable, err)
}

// confirm`,
		`	return Claim{Status: ClaimAcquired, Holder: 1, Left: o.lease()}, nil
}

// confirm`},
	{"who asks is not compared", "once.go",
		`case c.Binding != op.Binding:`,
		`case false:`},
	{"what is asked is not compared", "once.go",
		`case c.Fingerprint != op.Fingerprint:`,
		`case false:`},
	{"what is asked is compared before who asks", "once.go",
		`	case c.Binding != op.Binding:
		return ErrPrincipalChanged
	case c.Fingerprint != op.Fingerprint:
		return ErrKeyReused`,
		`	case c.Fingerprint != op.Fingerprint:
		return ErrKeyReused
	case c.Binding != op.Binding:
		return ErrPrincipalChanged`},
	{"422 comes after 409: what is asked is compared when the work has ended", "once.go",
		`		if c.Status != ClaimAcquired {
			if err := judge`,
		`		if c.Status == ClaimDone {
			if err := judge`},
	{"an orphan runs again, whatever Orphan says", "once.go",
		`if o.Orphan != OrphanRerun {`,
		`if o.Orphan != OrphanRerun && c.Holder > 1 {`},
	{"a failed completion releases the key", "once.go",
		`			o.recordLater(r, head, body)
		}

	case verdictFree:`,
		`			o.giveBack(&r.claiming)
		}

	case verdictFree:`},
	{"a failed completion is given up", "once.go",
		`			o.recordLater(r, head, body)
		}

	case verdictFree:`,
		`			r.stop()
		}

	case verdictFree:`},
	{"a lost claim answers with its own result", "once.go",
		`		case errors.Is(err, ErrClaimLost):
			r.stop()
			return o.afterLoss(r)`,
		`		case errors.Is(err, ErrClaimLost):
			r.stop()`},
	{"a claim that was lost while the work ran answers with its own result", "once.go",
		`		if lost {
			return o.afterLoss(r)
		}
		switch`,
		`		if lost {
			return a, nil
		}
		switch`},
	{"an answer is sent before it is recorded", "once.go",
		`		switch err := o.record(r, now, head, body); {
		case err == nil:`,
		`		go o.record(r, now, append([]byte(nil), head...), append([]byte(nil), body...))
		switch err := error(nil); {
		case err == nil:`},
	{"an unknown outcome frees the key", "once.go",
		`		a.Kind = OutcomeUnknown
		r.stop()
		r.tookOver = true // it is orphaned, not freed`,
		`		a.Kind = OutcomeUnknown
		r.stop()`},
	{"an unknown outcome is recorded as an answer", "middleware.go",
		`	case x.held.saidUnknown.Load() && (frees || fails):
		return verdictUnknown`,
		`	case x.held.saidUnknown.Load() && (frees || fails):
		return verdictRecord`},
	{"the heartbeat is missing", "once.go",
		`	o.beats.add(&r.alarm, r, momentOf(r.acquired), o.lease()/3)
`,
		``},
	{"the heartbeat beats once", "once_run.go",
		`	if r.beat == nil {
		r.beat = time.AfterFunc(lease/3, r.heartbeat)
	} else {
		r.beat.Reset(lease / 3)
	}`,
		`	if r.beat == nil {
		r.beat = time.AfterFunc(1000*lease, r.heartbeat)
	}`},
	{"the heartbeat never ends", "once_run.go",
		`if !time.Now().Before(r.deadline().Add(lease)) {`,
		`if !time.Now().Before(r.deadline().Add(1000 * lease)) {`},
	{"the heartbeat goes on when the work is done", "once_run.go",
		`	r.stopped = true
	if r.beat != nil {
		r.beat.Stop()
	}
	call, done := r.beatCall, r.beatDone
	r.mu.Unlock()
	r.once.beats.remove(&r.alarm)`,
		`	call, done := r.beatCall, r.beatDone
	r.mu.Unlock()`},
	{"the work is not told that its claim is lost", "once_run.go",
		`		r.lost, r.stopped = true, true
		r.beat.Stop()
		if r.cancel != nil {
			r.cancel(errLost)
		}`,
		`		r.stopped = true
		r.beat.Stop()`},
	{"the work is not told that its time is over", "once_run.go",
		`return r.acquired.Add(r.once.timeout())`,
		`return r.acquired.Add(100 * r.once.timeout())`},
	{"the client's context is the handler's", "once_run.go",
		`r.base = context.WithoutCancel(r.ctx)`,
		`r.base = r.ctx`},
	{"a store that panics ends the process", "once_run.go",
		`	if p := recover(); p != nil {
		*err = o.panicked(method, p)
	}`,
		``},

	// The Middleware.
	{"a 500 frees the key", "record_capture.go",
		`	case http.StatusUnauthorized, http.StatusProxyAuthRequired`,
		`	case http.StatusInternalServerError, http.StatusUnauthorized, http.StatusProxyAuthRequired`},
	{"a bare 503 frees the key", "record_capture.go",
		`return h.Get("Retry-After") == ""`,
		`return false`},
	{"a 503 that says when to come back is recorded", "record_capture.go",
		`return h.Get("Retry-After") == ""`,
		`return true`},
	{"Release is not heard", "middleware.go",
		`frees := !c.isAnswer() || x.held.saidRelease.Load()`,
		`frees := !c.isAnswer()`},
	{"a panic frees the key", "middleware.go",
		`	head, body = x.h.c.record(x.headRoom())
	return head, body, verdictRecord
}

// verdict`,
		`	return nil, nil, verdictFree
}

// verdict`},
	{"what is written after the context has ended frees the key", "middleware.go",
		`	case frees && !c.announced && !x.held.ended():`,
		`	case frees:`},
	{"the body is no part of the fingerprint", "middleware.go",
		`joined(h.ifMatch), data)`,
		`joined(h.ifMatch), data[:0])`},
	{"JSON is compared by its bytes", "middleware.go",
		`take(r.Host, r.URL.RawQuery, joined(h.contentType)`,
		`take(r.Host, r.URL.RawQuery, "bytes"+joined(h.contentType)`},
	{"the query is no part of the fingerprint", "middleware.go",
		`take(r.Host, r.URL.RawQuery, joined`,
		`take(r.Host, "", joined`},
	{"a request without the key that is required runs", "middleware.go",
		`errors.Is(err, ErrNoKey) && (p.m.Required == nil || !p.m.Required(r))`,
		`errors.Is(err, ErrNoKey)`},
	{"the record is not bound to its caller", "middleware.go",
		`		x.r.op.Binding = h.binding(r, x.callerKey)`,
		``},
	{"tenants share their records", "middleware.go",
		`RecordKey(scope, x.r.method`,
		`RecordKey("", x.r.method`},
	{"a body that was cut short is taken for whole", "middleware_body.go",
		`		case err != nil:
			return x.bodyError(err)`,
		`		case err != nil:
			x.data = b
			return nil`},
	{"a replay has another status", "record_capture.go",
		`	w.WriteHeader(s.status)
	if len(a.Body) > 0 {`,
		`	w.WriteHeader(http.StatusOK)
	if len(a.Body) > 0 {`},
	{"an answer that is not recorded says that it is", "record_capture.go",
		`	if isRecorded {
		c.set`,
		`	if true {
		c.set`},
	{"an answer that is too large to record frees the key", "middleware.go",
		`	if v = x.verdict(); v == verdictRecord {`,
		`	if v = x.verdict(); h.c.tooLarge {
		v = verdictFree
	}
	if v == verdictRecord {`},
	{"a handler's requests carry the key of its caller", "idemkey.go",
		`	*s = keySource{kind: keyImplicit, shown: callerKey, shows: callerKey != ""}`,
		`	*s = keySource{kind: keyGiven, shown: callerKey, shows: callerKey != ""}`},

	// The Transport.
	{"each attempt has a key of its own", "send.go",
		`c.key.header(r.Header, c.t.keyField(), []string{formatKey(c.key.value, c.t.QuoteKeys)})`,
		`c.key.header(r.Header, c.t.keyField(), []string{NewKey()})`},
	{"the header is set on the caller's request", "clientkey.go",
		`	own := make(http.Header, len(h)+1)`,
		`	own := h`},
	{"a retry is paid for after the pause", "call.go",
		`	if !c.t.budget.pay(c.host.key, now) {
		x.stop = ErrBudget
		return
	}
	c.paid = true
	c.warn()`,
		`	if !c.t.budget.pay(c.host.key, now) {
		c.sleep(pause)
		x.stop = ErrBudget
		return
	}
	c.paid = true
	c.warn()`},
	{"retries are free", "call.go",
		`	if !c.t.budget.pay(c.host.key, now) {`,
		`	if false {`},
	{"the breaker is told twice", "breaker.go",
		`	if t.told {
		return false
	}
	t.told = true
	if h.gone`,
		`	if !t.told {
		t.told = true
		h.mu.Unlock()
		h.done(t, v, now)
		h.mu.Lock()
	}
	if h.gone`},
	{"the breaker is not told of failures", "send.go",
		`		ticket.doneAt(seen, end)`,
		`		if seen == healthGood {
			ticket.doneAt(seen, end)
		}`},
	{"the breaker counts cancelled callers", "send.go",
		`		return healthBad // the host had time enough
	}
	return healthNone`,
		`		return healthBad // the host had time enough
	}
	return healthBad`},
	{"unknown is treated as not sent", "certainty.go",
		`		return CertaintyUnknown
	}
	if w.asked`,
		`		return CertaintyNotSent
	}
	if w.asked`},
	{"the certainty is the last attempt's, not the worst", "call.go",
		`		r.Certainty = worse(r.Certainty, r.Tries[i].Certainty)`,
		`		r.Certainty = r.Tries[i].Certainty`},
	{"the mark of a replay is not heeded", "repeat.go",
		`	if replayed(h) {
		return true
	}`,
		``},
	{"the mark of a recorded failure is not heeded", "repeat.go",
		`	if first(h, headerStatus) == executed && status >= 500 {
		return true
	}`,
		``},
	{"Retry-After is not heeded", "call.go",
		`			wait, asked = RetryAfter(c.resp.Header, now)`,
		``},
	{"a wait of any length is heeded", "call.go",
		`		if wait > cmp.Or(c.t.MaxRetryAfter, defaultMaxRetryAfter) {
			x.stop`,
		`		if false {
			x.stop`},
	{"a pause may outlast the deadline", "call.go",
		`	if c.tooLate(now.Add(pause)) {`,
		`	if false {`},
	{"one attempt too many", "repeat.go",
		`case f.tries >= f.most:`,
		`case f.tries > f.most:`},
	{"a request that nothing protects is repeated", "repeat.go",
		`case !idempotent(f.method) && !f.keyed && f.certainty != CertaintyNotSent:`,
		`case false:`},
	{"a server that does not honour keys is sent one", "clientkey.go",
		`	if c.t.Honors != nil && !c.t.Honors(req) {`,
		`	if false {`},
	{"a host that wants nothing is not held", "call.go",
		`			c.host.v.hold(now.Add(min(wait, longestHold)))`,
		``},
	{"the limit does not hold", "call.go",
		`	if c.t.Limit == 0 {
		return true`,
		`	if c.t.Limit >= 0 {
		return true`},
	{"net/http may send an attempt again", "send.go",
		`c.getBody() != nil && !netHTTPResends(r.Header)`,
		`c.getBody() != nil`},
	{"an attempt's timer is not stopped", "attempt.go",
		`	case a.timed:
		a.t.timeouts.remove(&a.alarm)`,
		`	case a.timed:`},
	{"an answer that is not used is not closed", "call.go",
		`		drain(c.resp)
		c.resp = nil`,
		`		c.resp = nil`},
	{"the caller's body is not closed", "call.go",
		`	c.closeBody()
	if c.resp != nil {`,
		`	if c.resp != nil {`},
	{"two attempts read the caller's body at the same time", "body.go",
		`		done := t.reading
		if done == nil {`,
		`		done := t.reading
		if done = nil; done == nil {`},
	{"what was read for one attempt is missing from the next", "body.go",
		`			t.mem = append(t.mem, t.last...)`,
		``},
	{"a reply that was cut short counts as an answer", "send.go",
		`		try.Certainty = CertaintyUnknown // cut after its head`,
		`		try.Certainty = CertaintyAnswered`},
	{"an attempt may hang", "send.go",
		`a.bound(timeout, probe`,
		`a.bound(100*timeout, probe`},
}
