// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"context"
	"io"
	"sync"
	"time"

	"asf.sandbox/caddy/front"
)

// group holds the requests that one handler is serving. Hijacked connections outlive http.Server.Shutdown (net/http
// documents it), so the handler itself has to cut them when its configuration goes (case P15).
type group struct {
	mu      sync.Mutex
	stopped bool
	running int
	idle    chan struct{} // closed when stopped and nothing runs
	live    map[io.Closer]struct{}
	ctx     context.Context
	cancel  context.CancelFunc
	after   func() // once nothing runs
}

func newGroup() *group {
	ctx, cancel := context.WithCancel(context.Background())
	return &group{ctx: ctx, cancel: cancel, idle: make(chan struct{}), live: map[io.Closer]struct{}{}}
}

// enter counts a request in; false means that the group takes no more.
func (g *group) enter() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return false
	}
	g.running++
	return true
}

func (g *group) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running--
	if g.stopped && g.running == 0 {
		close(g.idle)
	}
	if g.after != nil && g.running == 0 {
		go g.after() // it may take locks whose holder waits for this one
	}
}

// whenIdle calls f as soon as nothing runs.
func (g *group) whenIdle(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running == 0 {
		go f()
		return
	}
	g.after = f
}

// hold registers connections that stop must close; false means that it is too late, and the caller closes them.
func (g *group) hold(conns ...io.Closer) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return false
	}
	for _, c := range conns {
		g.live[c] = struct{}{}
	}
	return true
}

func (g *group) release(conns ...io.Closer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range conns {
		delete(g.live, c)
	}
}

// context returns a copy of parent that also ends when the group stops.
func (g *group) context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(parent)
	unhook := context.AfterFunc(g.ctx, cancel)
	return ctx, func() { unhook(); cancel() }
}

func (g *group) isStopped() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.stopped
}

// stop cuts everything, once, and waits a little for the log lines of what it cut.
func (g *group) stop(patience time.Duration) {
	if !g.shut() {
		return
	}
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case <-g.idle:
	case <-t.C:
	}
}

func (g *group) shut() bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return false
	}
	g.stopped = true
	g.cancel()
	for c := range g.live {
		_ = c.Close()
	}
	if g.running == 0 {
		close(g.idle)
	}
	return true
}

const stopPatience = 500 * time.Millisecond

var (
	groupsMu sync.Mutex
	groups   = map[*group]struct{}{}
)

// register makes a group known to Shutdown; the result makes it unknown again.
func register(g *group) (forget func()) {
	groupsMu.Lock()
	defer groupsMu.Unlock()
	groups[g] = struct{}{}
	return func() {
		groupsMu.Lock()
		defer groupsMu.Unlock()
		delete(groups, g)
	}
}

// Shutdown cuts every tunnel and every answer in flight, in all configurations, and waits at most half a second for
// their log lines; what was only counted is written too. New requests are refused from here on. It is for a program that is about to exit.
func Shutdown() {
	groupsMu.Lock()
	all := make([]*group, 0, len(groups))
	for g := range groups {
		all = append(all, g)
	}
	groupsMu.Unlock()
	var wait sync.WaitGroup
	for _, g := range all {
		wait.Go(func() { g.stop(stopPatience) })
	}
	wait.Wait()
	front.Save()
	Flush()
}
