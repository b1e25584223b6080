package serve

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/config"
	"github.com/oncehttp/oncehttp/cmd/onceproxy/internal/proxy"
)

// Reload reads the settings anew and has new requests served by them. What runs goes
// on as it began. If anything is wrong nothing changes, and the error says what.
func (p *Proxy) Reload() error {
	err := p.reload()
	p.metrics.Reloaded(err)
	if err != nil {
		p.log.Error("the new settings are not used; the proxy goes on with those that it has", "err", err.Error())
		return err
	}
	p.log.Info("the settings were loaded anew", "routes", len(p.conf.Routes))
	for _, warning := range p.conf.Warnings() {
		p.log.Warn(warning)
	}
	return nil
}

func (p *Proxy) reload() error {
	c, err := p.line.Load()
	if err != nil {
		return err
	}
	if err := fixed(p.conf, c); err != nil {
		return err
	}
	files := p.files.Load()
	if c.TLS.Cert != "" {
		if files, err = loadTLS(&c.TLS); err != nil {
			return err
		}
	}
	routes, err := p.routes(c)
	if err != nil {
		return err
	}
	before := p.router.Load().Routes()
	p.router.Store(proxy.NewRouter(routes))
	p.files.Store(files)
	p.mu.Lock()
	p.conf, p.old = c, append(p.old, before...)
	p.mu.Unlock()
	for _, rt := range before {
		go p.retire(rt)
	}
	return nil
}

// retire waits for the work of a route that was replaced.
func (p *Proxy) retire(rt *proxy.Route) {
	rt.Drain(p.env.Stop)
	rt.Close()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, o := range p.old {
		if o == rt {
			p.old = append(p.old[:i:i], p.old[i+1:]...)
			return
		}
	}
}

// fixed names the settings that cannot change while the proxy runs and did.
func fixed(before, after *config.Config) error {
	var errs []error
	for _, s := range []struct {
		name          string
		before, after any
	}{
		{"listen", before.ListenAddr(), after.ListenAddr()},
		{"admin", before.AdminAddr(), after.AdminAddr()},
		{"admin_token_file", before.AdminTokenFile, after.AdminTokenFile},
		{"metrics", before.Metrics, after.Metrics},
		{"store", before.StoreURL(), after.StoreURL()},
		{"tls", before.TLS, after.TLS},
		{"limits", before.Limits, after.Limits},
		{"timeouts", before.Timeouts, after.Timeouts},
		{"log", before.Log, after.Log},
	} {
		if !reflect.DeepEqual(s.before, s.after) {
			errs = append(errs, fmt.Errorf("%s cannot change while the proxy runs; restart it", s.name))
		}
	}
	return errors.Join(errs...)
}
