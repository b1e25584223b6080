package sqlitestore

import "github.com/oncehttp/oncehttp"

// What the writer does for each method, in its transaction. An error is SQLite's
// and fails the transaction; what the contract answers is put into the call.

// leftBehind reports whether a transactional claim of another store on the file is
// over, although nobody has ended it. It is asked by who has the write lock, so no
// transaction runs it. Its holder may be about to begin one, unless its store is gone,
// or has let so much time pass that it would have given up waiting for the lock.
//
// Should the holder come later still, it finds out as soon as it has begun, before its
// work starts: so none of this is needed for work to run once, it only keeps a live
// holder from losing its turn.
func (w *writer) leftBehind(r *row, gone int64) bool {
	return w.now < r.expires && w.s.foreign(r) && (r.owner == gone || w.now >= w.s.overdue(r))
}

func doClaim(w *writer, c *call) error {
	inserted, err := w.insert(c)
	if err != nil || inserted {
		return err
	}
	r, found, err := load(w.ctx, w.load, c.op.Key)
	switch {
	case err != nil:
		return err
	case !found:
		return errVanished
	}
	left := w.leftBehind(&r, c.gone)
	switch {
	case left && r.holder > 1:
		// What an earlier holder did is still not known.
		r.lapses, r.owner = min(r.lapses, w.now), 0
		c.changed = true
		if _, err := w.orphan.ExecContext(w.ctx, r.id, w.now); err != nil {
			return err
		}
	case left, w.now >= r.expires:
		if _, err := w.remove.ExecContext(w.ctx, r.id); err != nil {
			return err
		}
		inserted, err := w.insert(c)
		if err == nil && !inserted {
			err = errVanished
		}
		c.changed = true
		return err
	}
	status := w.s.status(&r, w.now)
	if w.s.foreign(&r) {
		status = oncehttp.ClaimRunning
	}
	own := string(r.token) == c.op.Token
	switch {
	case status == oncehttp.ClaimDone,
		!own && status == oncehttp.ClaimRunning,
		!own && !c.orphans:
		c.claim = r.claim(w.now, status)
		return nil
	case !own:
		r.holder++
		c.changed = true
	}
	_, err = w.hold.ExecContext(w.ctx, r.id, []byte(c.op.Token), w.now+c.lease, c.keep, w.now+max(c.lease, c.keep), r.holder, nullOwner(c.owner))
	c.claim = r.claim(w.now, oncehttp.ClaimAcquired)
	c.claim.Left = duration(c.lease)
	return err
}

func (w *writer) insert(c *call) (bool, error) {
	expires := w.now + max(c.lease, c.keep)
	n, err := changes(w.insertStmt.ExecContext(w.ctx, []byte(c.op.Key), []byte(c.op.Token), digest(&c.op.Fingerprint), digest(&c.op.Binding),
		w.now, w.now+c.lease, c.keep, expires, nullOwner(c.owner)))
	if err != nil || n == 0 {
		return false, err
	}
	w.inserted++
	w.due = min(w.due, expires)
	c.claim = oncehttp.Claim{
		Status:      oncehttp.ClaimAcquired,
		Fingerprint: c.op.Fingerprint,
		Binding:     c.op.Binding,
		Left:        duration(c.lease),
		Holder:      1,
	}
	return true, nil
}

func nullOwner(owner int64) any {
	if owner == 0 {
		return nil
	}
	return owner
}

func doRenew(w *writer, c *call) error {
	n, err := changes(w.renew.ExecContext(w.ctx, []byte(c.op.Key), []byte(c.op.Token), w.now, c.lease))
	if err != nil {
		return err
	}
	if n == 0 {
		return w.explainLoss(c, oncehttp.ErrClaimLost)
	}
	c.changed = c.lease == 0
	return nil
}

func doComplete(w *writer, c *call) error {
	state := stateDone
	if c.dropBody {
		state, c.body = stateDropped, nil
	}
	n, err := changes(w.complete.ExecContext(w.ctx, []byte(c.op.Key), []byte(c.op.Token), w.now, state, c.keep, c.head, c.body))
	if err != nil {
		return err
	}
	if n == 0 {
		return w.explainLoss(c, oncehttp.ErrClaimLost)
	}
	w.due = min(w.due, w.now+c.keep)
	c.changed = true
	return nil
}

func doRelease(w *writer, c *call) error {
	n, err := changes(w.release.ExecContext(w.ctx, []byte(c.op.Key), []byte(c.op.Token)))
	if err != nil {
		return err
	}
	if n == 0 {
		return w.explainLoss(c, nil)
	}
	c.changed = true
	return nil
}

// explainLoss answers Renew, Complete or Release of a claim that the token does
// not hold: free is for a key that is free.
func (w *writer) explainLoss(c *call, free error) error {
	r, found, err := load(w.ctx, w.load, c.op.Key)
	switch {
	case err != nil:
		return err
	case !found || w.now >= r.expires:
		c.err = free
	case string(r.token) != c.op.Token:
		c.err = oncehttp.ErrClaimLost
	}
	return nil // it is done, by this token
}

func doResolve(w *writer, c *call) error {
	r, found, err := load(w.ctx, w.load, c.op.Key)
	switch {
	case err != nil:
		return err
	case !found || w.now >= r.expires:
		c.err = oncehttp.ErrNotFound
		return nil
	case w.s.status(&r, w.now) != oncehttp.ClaimOrphaned:
		c.err = oncehttp.ErrNotOrphaned
		return nil
	}
	c.changed = true
	if !c.resolution.Applied {
		_, err = w.remove.ExecContext(w.ctx, r.id)
		return err
	}
	keep := r.keep
	if c.resolution.Keep > 0 {
		keep = micros(c.resolution.Keep)
	}
	state := stateDone
	if c.dropBody {
		state, c.body = stateDropped, nil
	}
	w.due = min(w.due, w.now+keep)
	_, err = w.resolve.ExecContext(w.ctx, r.id, state, w.now+keep, c.head, c.body)
	return err
}

func doPurge(w *writer, c *call) error {
	r, found, err := load(w.ctx, w.load, c.op.Key)
	switch {
	case err != nil:
		return err
	case !found || w.now >= r.expires:
		c.err = oncehttp.ErrNotFound
		return nil
	case w.s.status(&r, w.now) == oncehttp.ClaimRunning:
		c.err = oncehttp.ErrNotPurgeable
		return nil
	}
	c.changed = true
	_, err = w.remove.ExecContext(w.ctx, r.id)
	return err
}
