// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() { caddy.RegisterModule(&Transparent{}) }

// Transparent is a listener for TLS clients that ignore proxy variables: names lead them here, and the ClientHello's
// server name stands where a CONNECT has its target. Everything from there on is done by a forward proxy of the same
// configuration itself: its list, its tunnels' slots, its limits, its log. No certificate is involved: the client's
// bytes go to the destination as they came, and a refusal is a TLS alert.
type Transparent struct {
	// Listen is ADDRESS:PORT; the port is the one that a client is taken to ask for.
	Listen string `json:"listen,omitempty"`
	// Listener is for the log.
	Listener string `json:"listener,omitempty"`
	// Server names the HTTP server whose asf_connect handler decides.
	Server string `json:"server,omitempty"`
	// MaxConns is how many connections may be open at once. Default 256.
	MaxConns int `json:"max_conns,omitempty"`

	connect  *Connect
	address  caddy.NetworkAddress
	port     uint16
	seats    *seats
	listener net.Listener
	ctx      context.Context
	stopped  atomic.Bool
}

// CaddyModule implements caddy.Module.
func (*Transparent) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "asf_transparent", New: func() caddy.Module { return new(Transparent) }}
}

// Provision finds the handler that decides; without one nothing is served.
func (t *Transparent) Provision(ctx caddy.Context) error {
	address, err := caddy.ParseNetworkAddress(t.Listen)
	if err != nil {
		return err
	}
	if address.Network != "tcp" || address.Host == "" || address.StartPort == 0 || address.PortRangeSize() != 1 {
		return fmt.Errorf("listen: %q is not one ADDRESS:PORT", t.Listen)
	}
	t.address, t.port = address, uint16(address.StartPort)
	if t.MaxConns <= 0 {
		t.MaxConns = defaultMaxConns
	}
	t.seats, t.ctx = newSeats(t.MaxConns), ctx
	app, err := ctx.AppIfConfigured("http")
	if err != nil {
		return err
	}
	t.connect, err = connectOf(app, t.Server)
	return err
}

// connectOf finds the forward proxy of a server.
func connectOf(app any, server string) (*Connect, error) {
	if servers, ok := app.(*caddyhttp.App); ok && servers.Servers[server] != nil {
		for _, route := range servers.Servers[server].Routes {
			for _, handler := range route.Handlers {
				if c, ok := handler.(*Connect); ok {
					return c, nil
				}
			}
		}
	}
	return nil, fmt.Errorf("server: %q has no asf_connect handler", server)
}

// Start implements caddy.App. Caddy's own listeners let a new configuration bind what the old one still holds.
func (t *Transparent) Start() error {
	l, err := t.address.Listen(t.ctx, 0, net.ListenConfig{})
	if err != nil {
		return err
	}
	listener, ok := l.(net.Listener)
	if !ok {
		return fmt.Errorf("listen: %q gives no stream listener", t.Listen)
	}
	t.listener = listener
	go t.accept()
	return nil
}

// Stop takes no more connections. Those that are open are cut with the handler's tunnels (case P15).
func (t *Transparent) Stop() error {
	t.stopped.Store(true)
	if t.listener == nil {
		return nil
	}
	return t.listener.Close()
}

func (t *Transparent) accept() {
	for {
		conn, err := t.listener.Accept()
		switch {
		case err == nil && t.seats.take():
			go t.serve(conn)
		case err == nil:
			d := t.decision()
			no := refuse(reasonLimitConnections, "too many open connections")
			d.refuse(no)
			d.emit()
			t.seats.turnAway(conn, alert(no))
		case t.stopped.Load() || errors.Is(err, net.ErrClosed):
			return
		default: // no descriptor is free: some will be
			time.Sleep(50 * time.Millisecond)
		}
	}
}

func (t *Transparent) decision() *decision {
	return &decision{session: t.connect.Session, listener: t.Listener, method: "TLS", port: strconv.Itoa(int(t.port)), start: time.Now()}
}

// serve decides and carries one connection; it leaves one decision line, or none if the client sent nothing and left.
func (t *Transparent) serve(conn net.Conn) {
	defer t.seats.give()
	defer func() { _ = conn.Close() }()
	d := t.decision()
	if no := t.connect.decide(d, func() *refusal { return t.carry(conn, d) }); no != nil {
		part(conn, closeWriteOf(conn), alert(no))
	}
}

func (t *Transparent) carry(conn net.Conn, d *decision) *refusal {
	c := t.connect
	if !c.group.hold(conn) {
		return refuse(reasonClosed, "")
	}
	defer c.group.release(conn)
	_ = conn.SetDeadline(time.Now().Add(time.Duration(c.HelloTimeout)))
	hello, sni, err := readHello(conn)
	if err != nil && len(hello) == 0 && !timedOut(err) { // as probes do
		return nil
	}
	if err != nil && c.group.isStopped() {
		return refuse(reasonClosed, "")
	}
	_ = conn.SetDeadline(time.Time{})
	d.host = sni
	target, no := t.target(sni, err)
	if no != nil {
		return no
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	k := &helloClient{conn: conn, hello: hello, ahead: readOn(conn, cancel)}
	defer k.ahead.stop()
	return c.pass(ctx, target, k, d)
}

// target reads a server name as a CONNECT's target is read. An encrypted ClientHello (RFC 9849) is judged by its outer
// name, the only one that can be read here.
func (t *Transparent) target(sni string, err error) (authority, *refusal) {
	if err != nil {
		return authority{}, refuse(reasonBadRequest, "no ClientHello: "+err.Error())
	}
	if sni == "" {
		return authority{}, refuse(reasonDeniedSNI, "the ClientHello has no server name")
	}
	name, why := canonicalName(sni)
	if why != "" {
		return authority{}, refuse(reasonDeniedName, why)
	}
	return authority{name: name, port: t.port}, nil
}

// helloClient is a client whose ClientHello came by itself.
type helloClient struct {
	conn  net.Conn
	hello []byte
	ahead *ahead
}

// objection: the name of a rule without a look at the bytes would be whatever a client says.
func (*helloClient) objection(r *rule) *refusal {
	if !r.anyTLS {
		return nil
	}
	return refuse(reasonDeniedSNI, "a name with tls any is served by CONNECT alone").at(r.key+".tls",
		"let the client use the proxy, or declare tls required for this name, then open the session again, also while it lives")
}

func (k *helloClient) connection() (net.Conn, func() error, error) {
	return k.conn, closeWriteOf(k.conn), nil
}

func (k *helloClient) stream(*rule, *decision) io.Reader {
	return io.MultiReader(bytes.NewReader(k.hello), bytes.NewReader(k.ahead.stop()), k.conn)
}

const maxAhead = 16 << 10

// ahead reads on, once, while a destination is looked up and dialled: a client that leaves must not keep its slot until
// then. net/http does the same for a CONNECT.
type ahead struct {
	conn net.Conn
	done chan struct{}
	once sync.Once
	got  []byte // TLS 1.3 clients with early data do not wait for an answer
}

func readOn(conn net.Conn, left func()) *ahead {
	a := &ahead{conn: conn, done: make(chan struct{})}
	go func() {
		defer close(a.done)
		buf := make([]byte, maxAhead)
		n, err := conn.Read(buf)
		a.got = buf[:n]
		if err != nil && !timedOut(err) {
			left()
		}
	}()
	return a
}

// stop ends the reading and returns what came.
func (a *ahead) stop() []byte {
	a.once.Do(func() {
		_ = a.conn.SetReadDeadline(time.Unix(1, 0))
		<-a.done
		_ = a.conn.SetReadDeadline(time.Time{})
	})
	return a.got
}

// Alerts of RFC 8446 section 6.2 that clients show by name.
const (
	alertDecodeError      = 50
	alertAccessDenied     = 49
	alertInternalError    = 80
	alertUnrecognizedName = 112
)

// alert renders a refusal as one fatal TLS alert record. access_denied is the policy's alone, so that a client's message
// tells a denial from trouble on the way.
func alert(no *refusal) []byte {
	code := byte(alertInternalError)
	switch {
	case no.reason == reasonBadRequest:
		code = alertDecodeError
	case no.reason == reasonDeniedSNI && no.key == "":
		code = alertUnrecognizedName
	case strings.HasPrefix(no.reason, "denied-"):
		code = alertAccessDenied
	}
	return []byte{recordAlert, 3, 3, 0, 2, 2, code}
}

var (
	_ caddy.Provisioner = (*Transparent)(nil)
	_ caddy.App         = (*Transparent)(nil)
)
