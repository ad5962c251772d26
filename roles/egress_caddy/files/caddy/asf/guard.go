// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() { caddy.RegisterModule(&Guard{}) }

const maxHead = 120 // bytes of a malformed request that are kept for the log

// Guard wraps a listener. It caps connections; it writes the line for a request that net/http refuses before any
// handler runs (malformed request line, header too long or too slow, HTTP/2 preface); and it keeps the raw connection
// within the handlers' reach, which Caddy hides behind a type without half-close when only HTTP/1 is on.
type Guard struct {
	// Session and Listener are for the log; a Listener that begins with "L2" answers in the front's form.
	Session  string `json:"session,omitempty"`
	Listener string `json:"listener,omitempty"`
	// MaxConns is how many connections may be open at once. Default 256.
	MaxConns int `json:"max_conns,omitempty"`

	seats *seats
}

// CaddyModule implements caddy.Module.
func (*Guard) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "caddy.listeners.asf_guard", New: func() caddy.Module { return new(Guard) }}
}

// Provision sets defaults, and turns off net/http's own answer to "OPTIONS *", which no handler would see.
func (g *Guard) Provision(ctx caddy.Context) error {
	if g.MaxConns <= 0 {
		g.MaxConns = defaultMaxConns
	}
	g.seats = newSeats(g.MaxConns)
	if srv, ok := ctx.Value(caddyhttp.ServerCtxKey).(*caddyhttp.Server); ok {
		var once sync.Once
		// Called by the accept loop before a connection's goroutine exists, so the first call happens before every read.
		srv.RegisterConnContext(func(ctx context.Context, _ net.Conn) context.Context {
			if s, ok := ctx.Value(http.ServerContextKey).(*http.Server); ok {
				once.Do(func() { s.DisableGeneralOptionsHandler = true })
			}
			return ctx
		})
	}
	return nil
}

// WrapListener implements caddy.ListenerWrapper.
func (g *Guard) WrapListener(l net.Listener) net.Listener { return &guardListener{l, g} }

type guardListener struct {
	net.Listener
	guard *Guard
}

func (l *guardListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.guard.seats.take() {
			return &guardConn{Conn: c, guard: l.guard}, nil
		}
		l.guard.emit(reasonLimitConnections, "too many open connections", 0, time.Now())
		l.guard.seats.turnAway(c, l.guard.overflow())
	}
}

func (g *Guard) overflow() []byte {
	if isFront(g.Listener) {
		return frontOverflow()
	}
	return refuse(reasonLimitConnections, "too many open connections").bytes("", "", "")
}

func (g *Guard) emit(reason, detail string, up int64, start time.Time) {
	d := &decision{session: g.Session, listener: g.Listener, reason: reason, detail: detail, up: up, start: start}
	d.emit()
}

// guardConn watches the bytes of one connection for requests that never reach a handler.
type guardConn struct {
	net.Conn
	guard *Guard

	mu      sync.Mutex
	serving bool
	pending int64 // bytes read since the last request was served
	since   time.Time
	head    []byte
	closing sync.Once
}

func (c *guardConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.note(p[:n])
	}
	return n, err
}

func (c *guardConn) note(p []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.serving {
		return
	}
	if c.pending == 0 {
		c.since, c.head = time.Now(), nil
	}
	c.pending += int64(len(p))
	if room := maxHead - len(c.head); room > 0 {
		c.head = append(c.head, p[:min(len(p), room)]...)
	}
}

// enter says that a handler has the connection's current request; it does nothing on a nil guardConn.
func (c *guardConn) enter() { c.serve(true) }

// leave says that the request is done: what is read from here on is the next one.
func (c *guardConn) leave() { c.serve(false) }

func (c *guardConn) serve(on bool) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.serving, c.pending, c.head = on, 0, nil
}

// Close closes the connection and writes the line of a request that no handler saw.
func (c *guardConn) Close() error {
	c.closing.Do(func() {
		c.guard.seats.give()
		c.mu.Lock()
		pending, since, head, serving := c.pending, c.since, c.head, c.serving
		c.mu.Unlock()
		if !serving && pending > 0 {
			c.guard.emit(reasonBadRequest, "refused by the HTTP parser: "+firstLine(head), pending, since)
		}
	})
	return c.Conn.Close()
}

// CloseWrite sends FIN and leaves the reading side open.
func (c *guardConn) CloseWrite() error { return closeWriteOf(c.Conn)() }

// LocalAddr smuggles the connection itself through net/http, which puts this value into each request's context.
func (c *guardConn) LocalAddr() net.Addr { return guardAddr{c.Conn.LocalAddr(), c} }

type guardAddr struct {
	net.Addr
	conn *guardConn
}

// guarded returns the raw connection of a request, or nil when its listener has no guard.
func guarded(q *http.Request) *guardConn {
	if a, ok := q.Context().Value(http.LocalAddrContextKey).(guardAddr); ok {
		return a.conn
	}
	return nil
}

// firstLine keeps of a malformed request what helps and holds no header: a header could hold a credential.
func firstLine(head []byte) string {
	if i := bytes.IndexAny(head, "\r\n"); i >= 0 {
		head = head[:i]
	}
	return describeTarget(string(head))
}

var (
	_ caddy.ListenerWrapper = (*Guard)(nil)
	_ caddy.Provisioner     = (*Guard)(nil)
)
