// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() { caddy.RegisterModule(&Connect{}) }

// Connect is the forward proxy: it serves CONNECT to declared names and nothing else.
type Connect struct {
	// Session and Listener are for the log.
	Session  string `json:"session,omitempty"`
	Listener string `json:"listener,omitempty"`
	// Policy is the complete list of destinations.
	Policy []Rule `json:"policy,omitempty"`
	// DenyCIDRs are never dialled, whatever Policy says.
	DenyCIDRs []string `json:"deny_cidrs,omitempty"`
	// Key is the manifest key of the list, for refusals. Default: network.allow_domains.
	Key string `json:"key,omitempty"`
	// Resolver is IP or IP:port; empty means the container's resolv.conf.
	Resolver string `json:"resolver,omitempty"`
	// Chain is the operator's proxy; without it destinations are dialled here.
	Chain *Chain `json:"chain,omitempty"`
	// MaxTunnels is how many may be open at once, those being resolved and dialled included. Default 64.
	MaxTunnels int `json:"max_tunnels,omitempty"`
	// IdleTimeout ends a tunnel in which neither side sent anything. Default 5m.
	IdleTimeout caddy.Duration `json:"idle_timeout,omitempty"`
	// DNSTimeout, DialTimeout (all addresses together) and HelloTimeout: defaults 5s, 10s, 10s.
	DNSTimeout   caddy.Duration `json:"dns_timeout,omitempty"`
	DialTimeout  caddy.Duration `json:"dial_timeout,omitempty"`
	HelloTimeout caddy.Duration `json:"hello_timeout,omitempty"`

	// PolicyID is told with every refusal, so that it can be seen which policy decides.
	PolicyID string `json:"policy_id,omitempty"`

	policy  *policy
	lookup  lookupFunc
	tunnels *tunnels
	slots   chan struct{}
	group   *group
}

// CaddyModule implements caddy.Module.
func (*Connect) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.asf_connect", New: func() caddy.Module { return new(Connect) }}
}

// Provision compiles the policy; anything doubtful in it is an error, so nothing is served.
func (c *Connect) Provision(caddy.Context) error {
	if c.Key == "" {
		c.Key = "network.allow_domains"
		if c.Listener == "L3" {
			c.Key = "llm.direct_domain"
		}
	}
	var err error
	if c.policy, err = compilePolicy(c.Policy, c.DenyCIDRs, c.Key); err != nil {
		return err
	}
	if c.lookup, err = newLookup(c.Resolver); err != nil {
		return err
	}
	if c.Chain != nil {
		if err = c.Chain.provision(); err != nil {
			return err
		}
	}
	if c.MaxTunnels <= 0 {
		c.MaxTunnels = 64
	}
	fallback(&c.IdleTimeout, 5*time.Minute)
	fallback(&c.DNSTimeout, 5*time.Second)
	fallback(&c.DialTimeout, 10*time.Second)
	fallback(&c.HelloTimeout, 10*time.Second)
	c.join()
	return nil
}

// Cleanup cuts what is still open: at close all of it, when a reload replaces this configuration what the new one does
// not allow (case P15).
func (c *Connect) Cleanup() error {
	if c.tunnels != nil {
		c.part()
	}
	return nil
}

func fallback(d *caddy.Duration, v time.Duration) {
	if *d <= 0 {
		*d = caddy.Duration(v)
	}
}

// ServeHTTP decides and carries one request; it leaves exactly one decision line.
func (c *Connect) ServeHTTP(w http.ResponseWriter, q *http.Request, _ caddyhttp.Handler) error {
	raw := guarded(q)
	raw.enter()
	defer raw.leave()
	d := &decision{session: c.Session, listener: c.Listener, method: q.Method, host: describeTarget(q.RequestURI), start: time.Now()}
	no := c.decide(d, func() *refusal {
		target, no := readTarget(q)
		if no != nil {
			return no
		}
		return c.pass(q.Context(), target, &connectClient{w: w, raw: raw, patience: time.Duration(c.HelloTimeout)}, d)
	})
	if no != nil {
		return answerRefusal(w, raw, no.bytes(d.host, d.port, c.current().PolicyID))
	}
	return nil
}

// readTarget takes the request apart by its raw target and framing alone. The Host header is not looked at: for a
// CONNECT the target is what is asked for (RFC 9112 section 3.2.3).
func readTarget(q *http.Request) (authority, *refusal) {
	if q.Method != http.MethodConnect {
		if strings.Contains(q.RequestURI, "://") {
			return authority{}, refuse(reasonDeniedAbsoluteForm, "plain requests are not forwarded")
		}
		return authority{}, refuse(reasonDeniedMethod, "only CONNECT is served here")
	}
	if q.ProtoMajor != 1 { // 1.0 is welcome: Python's http.client sends it
		return authority{}, refuse(reasonBadRequest, "CONNECT of HTTP/1 only")
	}
	if q.ContentLength != 0 || len(q.TransferEncoding) > 0 {
		return authority{}, refuse(reasonBadRequest, "a CONNECT has no body (RFC 9110 section 9.3.6)")
	}
	return parseAuthority(q.RequestURI)
}

// connectClient is a client that asked by CONNECT.
type connectClient struct {
	w        http.ResponseWriter
	raw      *guardConn
	patience time.Duration // from the 200 to the end of the ClientHello
	conn     net.Conn
	ahead    []byte // what it sent behind the request
}

func (*connectClient) objection(*rule) *refusal { return nil }

func (k *connectClient) connection() (conn net.Conn, half func() error, err error) {
	if k.conn, k.ahead, err = hijack(k.w); err != nil {
		return nil, nil, err
	}
	return k.conn, halfOf(k.raw, k.conn), nil
}

// stream says yes and checks the first flight.
func (k *connectClient) stream(r *rule, d *decision) io.Reader {
	_ = k.conn.SetDeadline(time.Now().Add(k.patience))
	// Neither Content-Length nor Transfer-Encoding may stand here (RFC 9110 section 9.3.6).
	if _, err := io.WriteString(k.conn, "HTTP/1.1 200 Connection established\r\n\r\n"); err != nil {
		d.reason = reasonClientGone
		return nil
	}
	from := io.MultiReader(bytes.NewReader(k.ahead), k.conn)
	if r.anyTLS {
		return from
	}
	return checkHello(from, r, d)
}

// checkHello demands a ClientHello whose server name is the CONNECT name. 200 had to come first, so a denial is seen
// by the client as a cut tunnel; not one of its bytes has reached the destination. The result is nil then.
func checkHello(from io.Reader, r *rule, d *decision) io.Reader {
	hello, sni, err := readHello(from)
	if err != nil && len(hello) == 0 && !timedOut(err) { // it left without sending anything, as probes do
		d.reason = reasonClientGone
		return nil
	}
	name, why := canonicalName(sni)
	switch {
	case err != nil:
		d.detail = "no ClientHello: " + err.Error()
	case sni == "":
		d.detail = "the ClientHello has no server name"
	case why != "" || name != r.name:
		d.detail = "the ClientHello names " + strconv.Quote(sni)
	default:
		return io.MultiReader(bytes.NewReader(hello), from)
	}
	d.reason, d.key = reasonDeniedSNI, r.key+".tls"
	return nil
}

// hijack takes the connection over and returns what the client had already sent behind the request.
func hijack(w http.ResponseWriter) (net.Conn, []byte, error) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return nil, nil, err
	}
	return conn, readAhead(rw.Reader), nil
}

func readAhead(r *bufio.Reader) []byte {
	b, _ := r.Peek(r.Buffered())
	return bytes.Clone(b)
}

// halfOf finds the client's half-close. Caddy wraps each connection in a type without one when only HTTP/1 is on, so
// it comes from the guard; without guard the tunnel is closed whole.
func halfOf(raw *guardConn, client net.Conn) func() error {
	if raw != nil {
		return raw.CloseWrite
	}
	return closeWriteOf(client)
}

// answerRefusal writes by hand on the hijacked connection, so nothing that was pipelined behind a refused request is
// ever parsed, and lets the answer arrive before the connection is reset.
func answerRefusal(w http.ResponseWriter, raw *guardConn, answer []byte) error {
	client, _, err := hijack(w)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	if raw != nil {
		part(client, raw.CloseWrite, answer)
	} else {
		part(client, nil, answer)
	}
	return nil
}

var (
	_ caddy.Provisioner           = (*Connect)(nil)
	_ caddy.CleanerUpper          = (*Connect)(nil)
	_ caddyhttp.MiddlewareHandler = (*Connect)(nil)
)
