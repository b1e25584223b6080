// Package crash kills servers and looks at what that did.
//
// [Run] starts a program that serves HTTP, has clients ask it for actions, kills it
// with SIGKILL at random points and starts it again, many times. The clients repeat
// every action until it is answered. Then the effects are counted where the kills
// could not reach them, and [Report.Faults] says which promise was broken:
//
//   - an action took effect at most once, and exactly once if anybody was told that
//     it did; with Config.Exactly every action was answered so, and never as unknown;
//   - the answer is that of the run which had the effect, and every later answer
//     equals the first one;
//   - nothing is stuck: every action was answered within Config.Bound, and in the
//     end no record is running;
//   - a server that cannot work says so: 503, problem+json, Retry-After;
//   - enough kills landed while a claim was running (a third), or they would say
//     little.
//
// What is killed is any command: see [Config.Victim] and [Process]. For programs
// made for the purpose there are [Work], a handler with an effect, [Journal], where
// effects are written, [Progress] and [Watch], which tell what a process was doing
// when it died, and [Serve].
package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"time"
)

// A Victim is what is killed and started again.
type Victim interface {
	// Start starts it. It need not be ready to serve yet.
	Start() error
	// Ready waits until it serves, or fails if it has ended.
	Ready(ctx context.Context) error
	// Kill ends it as SIGKILL does, and waits until it is gone. It fails if the
	// victim had ended by itself.
	Kill() error
}

// A Config says what is killed and what is asked of it. Victim, URL and Effects are
// required.
type Config struct {
	// Name stands in front of lines of progress.
	Name string

	// Victim is killed. If it is a [Process], Run ends its last life with SIGTERM
	// and holds it to leaving in order.
	Victim Victim

	// URL is where actions are sent: POSTs whose body is the action's name. The
	// answer to expect is that of [Work].
	URL string

	// Effects returns the runs that took effect, by action. It is called once, at
	// the end, while the victim serves.
	Effects func(ctx context.Context) (map[string][]Effect, error)

	// Phases returns what the victim was doing at the moment of its death. It is
	// called after every kill, before the next start. If it is nil, nobody asks
	// whether kills landed while claims were running.
	Phases func() Phases

	// Running counts the store's records that are running. At the end of a run, with
	// nobody asking any more, that must become 0 within Bound. Nil: not asked.
	Running func(ctx context.Context) (int, error)

	// Kills is how often to kill. Zero means 30.
	Kills int

	// Seed decides when to kill. Zero means a random one, which the report names.
	Seed uint64

	// Clients is how many ask at a time. Zero means 12.
	Clients int

	// Life is the longest time between the first answer of a life and its end, or as
	// long as that answer took from the start, if that is longer: where starts are
	// slow, little is answered in a life, and one of many clients could come away
	// empty from each. Every time up to it is as likely. Zero means 200 ms.
	Life time.Duration

	// Down is how long the victim stays dead. Zero: it is started at once.
	Down time.Duration

	// StartUp has one kill in four land between a start and the first answer.
	StartUp bool

	// Exactly holds the victim to one effect of every action, and to no unknown
	// outcome: what a store promises that commits records and effects together.
	Exactly bool

	// Forgets allows what a victim may do that has lost all records with its life:
	// an action may then take effect once in every life, and answers are compared
	// within a life only.
	Forgets bool

	// Bound is how long an action may take to be answered, and how long a victim
	// may take to answer after it was started again. Zero means 60 s.
	Bound time.Duration

	// Log is given a line of progress every now and then. Nil: not called.
	Log func(line string)

	// Base sends the clients' requests. Nil: a transport of their own.
	Base http.RoundTripper
}

func (c *Config) kills() int           { return orElse(c.Kills, 30) }
func (c *Config) clients() int         { return orElse(c.Clients, 12) }
func (c *Config) life() time.Duration  { return orElse(c.Life, 200*time.Millisecond) }
func (c *Config) bound() time.Duration { return orElse(c.Bound, time.Minute) }

func orElse[T comparable](v, other T) T {
	var zero T
	if v == zero {
		return other
	}
	return v
}

// Run kills c.Victim c.Kills times under load and reports what came of it. Its error
// says why it could not go on, or that there are no effects to look at; what the
// victim did wrong is in the report's Faults.
func Run(ctx context.Context, c Config) (*Report, error) {
	if c.Victim == nil || c.URL == "" || c.Effects == nil {
		return nil, errors.New("crash: Config needs Victim, URL and Effects")
	}
	r := &run{Config: c, began: time.Now(), starting: 50 * time.Millisecond}
	if r.Seed == 0 {
		r.Seed = rand.Uint64N(1<<53-1) + 1
	}
	r.random = rand.New(rand.NewPCG(r.Seed, 0))
	r.report = &Report{Name: c.Name, Seed: r.Seed, Forgets: c.Forgets, Exactly: c.Exactly}
	r.load = newLoad(&r.Config, &r.epochs)
	return r.report, r.run(ctx)
}

// A run is one call of Run.
type run struct {
	Config
	began  time.Time
	random *rand.Rand
	epochs epochs
	load   *load
	report *Report

	started  time.Time     // when the victim was started last
	starting time.Duration // how long it took then until something was done
}

func (r *run) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	err := r.start()
	r.load.start(ctx)
	for err == nil && r.report.Kills < r.kills() {
		if err = r.kill(ctx); err == nil {
			r.progress()
		}
	}
	if err == nil {
		err = r.ready(ctx)
	}
	if err != nil {
		cancel()
		r.load.wait()
		return fmt.Errorf("crash: after %d kills, seed %d: %w", r.report.Kills, r.Seed, err)
	}
	r.load.finish() // until everything is answered
	r.load.audit(ctx)
	if err := r.settle(ctx); err != nil {
		return err
	}
	return r.end(ctx)
}

// kill waits for a random moment, kills the victim and starts it again.
func (r *run) kill(ctx context.Context) error {
	if r.StartUp && r.random.IntN(4) == 0 {
		sleep(ctx, r.upTo(r.starting))
	} else {
		if err := r.ready(ctx); err != nil {
			return err
		}
		if err := r.working(ctx); err != nil {
			return err
		}
		sleep(ctx, r.lifetime())
	}
	from := time.Now()
	if err := r.Victim.Kill(); err != nil {
		return err
	}
	r.epochs.died(from, time.Now())
	var p Phases
	if r.Phases != nil {
		p = r.Phases()
	}
	r.report.killed(p)
	sleep(ctx, r.Down)
	return r.start()
}

// lifetime returns how long the victim may go on after its first answer.
func (r *run) lifetime() time.Duration { return r.upTo(max(r.life(), r.starting)) }

// upTo returns a random time below most.
func (r *run) upTo(most time.Duration) time.Duration {
	return time.Duration(r.random.Int64N(int64(most)))
}

func (r *run) start() error {
	r.started = time.Now()
	return r.Victim.Start()
}

// ready waits until the victim serves.
func (r *run) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, r.bound())
	defer cancel()
	if err := r.Victim.Ready(ctx); err != nil {
		return err
	}
	now := time.Now()
	r.report.starts.add(now.Sub(r.started))
	r.epochs.lived(now)
	return nil
}

// working waits until the victim has done something since it was started.
func (r *run) working(ctx context.Context) error {
	for until := time.Now().Add(r.bound()); ; {
		if at := r.load.lastDone(); at.After(r.started) {
			r.starting = at.Sub(r.started)
			return nil
		}
		if time.Now().After(until) {
			return fmt.Errorf("nothing was done within %v of a start; clients were told: %v", r.bound(), r.load.told())
		}
		if !sleep(ctx, time.Millisecond) {
			return ctx.Err()
		}
	}
}

func (r *run) progress() {
	if r.Log == nil || r.report.Kills%100 != 0 {
		return
	}
	asked, answered := r.load.counts()
	r.Log(fmt.Sprintf("%8v  %-24s %4d of %d kills, %d while a claim was running; %d actions, %d of them answered",
		time.Since(r.began).Round(time.Second), r.Name, r.report.Kills, r.kills(), r.report.Hits, asked, answered))
}

// settle waits until no record is running.
func (r *run) settle(ctx context.Context) error {
	if r.Running == nil {
		return nil
	}
	for until := time.Now().Add(r.bound()); ; {
		n, err := r.Running(ctx)
		if err != nil {
			return fmt.Errorf("crash: counting what is running: %w", err)
		}
		if n == 0 {
			return nil
		}
		if time.Now().After(until) {
			r.report.fault("%d records are running %v after the last request, with nobody left to end them", n, r.bound())
			return nil
		}
		if !sleep(ctx, 50*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// end counts effects, has the victim leave in order, and judges.
func (r *run) end(ctx context.Context) error {
	effects, err := r.Effects(ctx)
	if err != nil {
		return fmt.Errorf("crash: counting effects: %w", err)
	}
	if p, ok := r.Victim.(*Process); ok {
		if err := p.Stop(r.bound()); err != nil {
			r.report.fault("told to leave, %v", err)
		}
	}
	r.report.Took = time.Since(r.began)
	r.report.judge(r.load, effects, &r.epochs, r.Phases != nil, r.bound())
	return nil
}

// sleep returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
