// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
)

// hostL1t is where the transparent listener is, with the port of the destinations: what is asked for is its own port.
const hostL1t = "127.0.0.20"

// l1t is a forward proxy with a transparent listener beside it.
type l1t struct {
	*l1
	listen string
}

func startL1t(t *testing.T, zone map[string]func(int) answer, entries func(port uint16) []m, handler, app m) *l1t {
	t.Helper()
	l, h := prepareL1(t, zone, entries, handler)
	x := &l1t{l, fmt.Sprintf("%s:%d", hostL1t, l.port)}
	l.proxy = startCaddyWith(t, "L1", h, nil, x.config(app))
	return x
}

func (x *l1t) config(more m) m {
	app := m{"listen": x.listen, "listener": "L1t", "server": "s"}
	for k, v := range more {
		app[k] = v
	}
	return app
}

func (x *l1t) connect() *net.TCPConn {
	x.t.Helper()
	l := *x.proxy
	l.addr = x.listen
	return l.dial()
}

// refused sends a first flight and returns what came back to the end of the connection.
func (x *l1t) refused(send []byte, end bool) []byte {
	x.t.Helper()
	c := x.connect()
	_, _ = c.Write(send)
	if end {
		_ = c.CloseWrite()
	}
	b, err := io.ReadAll(c)
	if err != nil {
		x.t.Errorf("the answer was cut: %v", err)
	}
	_ = c.Close()
	return b
}

func alertOf(code byte) []byte { return []byte{0x15, 3, 3, 0, 2, 2, code} }

// TestTransparent is case P11: a TLS client that knows nothing of a proxy talks to the declared host itself.
func TestTransparent(t *testing.T) {
	x := startL1t(t, nil, nil, nil, nil)
	c := x.connect()
	tc := tls.Client(c, x.pool) // the host's own certificate
	if _, err := io.WriteString(tc, "hello"); err != nil {
		t.Fatal(err)
	}
	_ = tc.CloseWrite()
	if b, err := io.ReadAll(tc); string(b) != "hello" || err != nil {
		t.Errorf("%q %v", b, err)
	}
	_ = c.Close()
	got := x.last(1)
	want := line{Logger: "asf", Session: "claude.main", Listener: "L1t", Method: "TLS", Host: "docs.example.com", Port: fmt.Sprint(x.port),
		Decision: "allow", Reason: "ok", Key: "network.allow_domains[0]", Addr: fmt.Sprintf("%s:%d", hostOK, x.port), Up: got.Up, Down: got.Down, Ms: got.Ms}
	if got.Up == 0 || got.Down == 0 {
		t.Errorf("nothing was counted: %+v", got)
	}
	if got.Detail = ""; got != want {
		t.Errorf("%+v", got)
	}
}

// TestTransparentUntouched: what arrives is what was sent, however it was cut up; an encrypted hello is judged by its
// outer name.
func TestTransparentUntouched(t *testing.T) {
	const name = "plain.example.com"
	h := clientHello(t, name)
	for what, send := range map[string][]byte{
		"whole": h, "records of 7": split(h, 7), "upper case": renamed(t, h, name, "PLAIN.Example.com"), "GREASE": grease(h),
		"another type": alsoNamed(t, h, name, 9, "evil.test"), "encrypted": encryptedHello(t, name, "evil.example.com"),
		"early data": append(bytes.Clone(h), bytes.Repeat([]byte{0x17, 3, 3, 0, 2, 1, 2}, 4000)...),
	} {
		t.Run(what, func(t *testing.T) {
			port := freePort(t, hostOK)
			plain := listenOn(t, fmt.Sprintf("%s:%d", hostOK, port), func(c net.Conn, s *sink) {
				_, _ = io.CopyN(s, c, int64(len(send)))
				_, _ = io.WriteString(c, "bye")
				_, _ = io.Copy(s, c)
			})
			x := startL1t(t, map[string]func(int) answer{name: fixed(answer{v4: []string{hostOK}})},
				func(uint16) []m { return []m{declared(1, name, port, nil)} }, nil, m{"listen": fmt.Sprintf("%s:%d", hostL1t, port)})
			x.listen = fmt.Sprintf("%s:%d", hostL1t, port)
			c := x.connect()
			_ = c.SetNoDelay(true)
			for part := send; len(part) > 0; { // many segments
				n := min(len(part), 1+len(send)/40)
				_, _ = c.Write(part[:n])
				part = part[n:]
			}
			// The client's end comes after the destination's answer: an end before it is a client that has gone.
			_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
			said := make([]byte, len("bye"))
			if _, err := io.ReadFull(c, said); err != nil || string(said) != "bye" {
				t.Fatalf("%q %v", said, err)
			}
			_ = c.CloseWrite()
			if b, err := io.ReadAll(c); err != nil || len(b) != 0 {
				t.Errorf("%q %v", b, err)
			}
			got := x.last(1)
			if plain.bytes() != string(send) || got.Reason != "ok" || got.Host != name || got.Up != int64(len(send)) {
				t.Errorf("%d bytes of %d arrived: %+v", len(plain.bytes()), len(send), got)
			}
		})
	}
}

type refusedHello struct {
	name                      string
	send                      []byte
	end                       bool
	code                      byte
	reason, detail, host, key string
}

func refusedHellos(t *testing.T, port uint16) []refusedHello {
	const own = "docs.example.com"
	h := clientHello(t, own)
	var out []refusedHello
	named := func(what, sni, reason, detail, key string) {
		out = append(out, refusedHello{what, renamed(t, h, own, sni), false, 49, reason, detail, sni, key})
	}
	named("P11 undeclared", "x7f3.canary.test", reasonDeniedName, "not-declared", listKey)
	named("P7 prefix", "not"+own, reasonDeniedName, "not-declared", listKey)
	named("P7 parent", "example.com", reasonDeniedName, "not-declared", listKey)
	named("P7 child", "a."+own, reasonDeniedName, "not-declared", listKey)
	named("P7 suffix", own+".evil.test", reasonDeniedName, "not-declared", listKey)
	named("P5 literal", hostOK, reasonDeniedName, "ip-literal", "")
	named("P5 hexadecimal", "0x7f000001", reasonDeniedName, "ip-literal", "")
	named("P5 IPv6", "::1", reasonDeniedName, "ip-literal", "")
	named("P6 NUL", own+"\x00.evil.test", reasonDeniedName, "bad-char", "")
	named("P6 NUL at the end", own+"\x00", reasonDeniedName, "bad-char", "")
	named("P6 UTF-8", "d\u00f6cs.example.com", reasonDeniedName, "bad-char", "")
	named("P6 escape", "\x1b]52;c;x\x07", reasonDeniedName, "ip-literal", "")
	named("P6 blank", own+" ", reasonDeniedName, "bad-char", "")
	named("P6 leading dot", "."+own, reasonDeniedName, "bad-label", "")
	named("P6 long label", strings.Repeat("a", 64)+".com", reasonDeniedName, "bad-label", "")
	named("P9 tls any", "any.example.com", reasonDeniedSNI, "a name with tls any is served by CONNECT alone", listKey+"[1].tls")
	named("P9 another port", "ports.example.com", reasonDeniedPort, "not-declared", listKey+"[2].ports")
	bad := func(what string, send []byte, end bool, detail string) {
		out = append(out, refusedHello{what, send, end, 50, reasonBadRequest, "no ClientHello: " + detail, "", ""})
	}
	out = append(out, refusedHello{"P10 no name", clientHello(t, ""), false, 112, reasonDeniedSNI, "the ClientHello has no server name", "", ""},
		refusedHello{"P10 encrypted, outer name undeclared", encryptedHello(t, "outer.test", own), false, 49, reasonDeniedName, "not-declared", "outer.test", listKey})
	bad("P10 two extensions", twice(t, h, own), false, "local error: tls: error decoding message")
	bad("P10 two names", alsoNamed(t, h, own, 0, "evil.test"), false, "local error: tls: error decoding message")
	bad("P6 trailing dot", renamed(t, h, own, own+"."), false, "local error: tls: error decoding message")
	bad("P10 http", []byte("GET / HTTP/1.1\r\nHost: "+own+"\r\n\r\n"), false, "not a TLS handshake")
	bad("P10 CONNECT", []byte(connectTo(fmt.Sprintf("%s:%d", own, port))), false, "not a TLS handshake")
	bad("P10 ssh", []byte("SSH-2.0-x\r\n"), false, "not a TLS handshake")
	bad("P10 SSLv2", []byte{0x80, 0x2e, 1, 0, 2}, false, "not a TLS handshake")
	bad("P10 half a hello", h[:60], true, "")
	bad("P10 half a hello, then silence", h[:60], false, "")
	bad("P10 silence", nil, false, "")
	bad("P10 endless", endlessHello(), false, errHelloLong.Error())
	return out
}

// TestTransparentRefused is cases P5 to P7 and P9 to P11: what is not exactly a declared name is refused with an alert,
// leaves one line with its reason and key, and causes no query (P1) and no connection.
func TestTransparentRefused(t *testing.T) {
	x := startL1t(t, nil, func(port uint16) []m {
		return []m{declared(1, "any.example.com", port, m{"tls": "any"}), declared(2, "ports.example.com", port+1, nil)}
	}, nil, nil)
	for i, c := range refusedHellos(t, x.port) {
		t.Run(c.name, func(t *testing.T) {
			x.t = t
			if b := x.refused(c.send, c.end); !bytes.Equal(b, alertOf(c.code)) {
				t.Errorf("answer %x, want alert %d", b, c.code)
			}
			got := x.last(i + 1)
			if got.Listener != "L1t" || got.Session != "claude.main" || got.Method != "TLS" || got.Port != fmt.Sprint(x.port) || got.Up != 0 {
				t.Errorf("line %+v", got)
			}
			if got.Decision != "deny" || got.Reason != c.reason || !strings.HasPrefix(got.Detail, c.detail) || got.Host != printable(c.host) || got.Key != c.key {
				t.Errorf("line %+v", got)
			}
		})
	}
	x.t = t
	if q := x.dns.queries(); len(q) != 0 {
		t.Errorf("P1: refused names were looked up: %v", q)
	}
	if x.tls.conns.Load() != 0 || x.canary.conns.Load() != 0 {
		t.Error("a refused connection reached a host")
	}
}

// TestTransparentAlerts: crypto/tls, as Go programs use it, shows the refusal by its name.
func TestTransparentAlerts(t *testing.T) {
	x := startL1t(t, nil, nil, nil, nil)
	err := tls.Client(x.connect(), &tls.Config{ServerName: "evil.test"}).Handshake()
	if err == nil || !strings.Contains(err.Error(), "access denied") {
		t.Errorf("%v", err)
	}
}

// TestTransparentProbe: connecting and leaving is no request, so it leaves no line.
func TestTransparentProbe(t *testing.T) {
	x := startL1t(t, nil, nil, nil, nil)
	_ = x.connect().Close()
	_ = x.refused(clientHello(t, "evil.test"), false)
	if got := x.last(1); got.Host != "evil.test" {
		t.Errorf("%+v", got)
	}
}

// TestTransparentAddresses is case P4 for transparent clients.
func TestTransparentAddresses(t *testing.T) {
	zone := map[string]func(int) answer{}
	var names []string
	for n, a := range barredAnswers() {
		zone[n+".example.com"] = fixed(a)
		names = append(names, n)
	}
	x := startL1t(t, zone, func(port uint16) []m {
		var out []m
		for i, n := range names {
			out = append(out, declared(i+1, n+".example.com", port, nil))
		}
		return out
	}, nil, nil)
	for i, n := range names {
		if b := x.refused(clientHello(t, n+".example.com"), false); !bytes.Equal(b, alertOf(49)) {
			t.Errorf("%s: %x", n, b)
		}
		key := fmt.Sprintf("network.allow_domains[%d].private", i+1)
		if n == "cable" {
			key = "" // nothing opens it
		}
		if got := x.last(i + 1); got.Decision != "deny" || got.Reason != reasonDeniedAddress || got.Key != key && n != "cable" {
			t.Errorf("%s: %+v", n, got)
		}
	}
	if x.canary.conns.Load() != 0 {
		t.Error("P4: a barred address was dialled")
	}
}

// TestTransparentUpstream is case P2: trouble on the way is no denial, in the alert and in the log.
func TestTransparentUpstream(t *testing.T) {
	x := startL1t(t, map[string]func(int) answer{"refused.example.com": fixed(answer{v4: []string{"127.0.0.11"}}), "silent.example.com": fixed(answer{silent: true})},
		func(port uint16) []m {
			return []m{declared(1, "refused.example.com", port, m{"private": []string{"127.0.0.11/32"}}),
				declared(2, "silent.example.com", port, nil), declared(3, "nx.example.com", port, nil)}
		}, nil, nil)
	for i, c := range []struct{ name, reason string }{
		{"refused", reasonUpstreamRefused}, {"silent", reasonDNSTimeout}, {"nx", reasonDNSNotFound},
	} {
		if b := x.refused(clientHello(t, c.name+".example.com"), false); !bytes.Equal(b, alertOf(80)) {
			t.Errorf("%s: %x", c.name, b)
		}
		if got := x.last(i + 1); got.Decision != "allow" || got.Reason != c.reason {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

// TestTransparentLimits: tunnels are counted together with those of CONNECT, connections are the listener's own.
func TestTransparentLimits(t *testing.T) {
	x := startL1t(t, nil, nil, m{"max_tunnels": 2, "hello_timeout": "5s"}, m{"max_conns": 2})
	a, b := x.open(x.target), x.open(x.target)
	if got := x.refused(clientHello(t, "docs.example.com"), false); !bytes.Equal(got, alertOf(80)) {
		t.Errorf("%x", got)
	}
	if got := x.last(1); got.Reason != reasonLimitTunnels || got.Listener != "L1t" || got.Decision != "deny" {
		t.Errorf("%+v", got)
	}
	_ = a.Close()
	_ = b.Close()
	x.wait(3)
	first, second := x.connect(), x.connect()
	for i := 4; ; i++ { // the refused one may still be on its way out
		got := x.refused(nil, true)
		if bytes.Equal(got, alertOf(80)) {
			if last := x.last(i); last.Reason != reasonLimitConnections || last.Listener != "L1t" || last.Decision != "deny" {
				t.Errorf("%+v", last)
			}
			break
		}
		i--
	}
	_ = first.Close()
	_ = second.Close()
}

// TestTransparentCut is case P15 for transparent clients: one is in its tunnel, one has not said its name yet.
func TestTransparentCut(t *testing.T) {
	for name, end := range map[string]func(x *l1t) error{
		"stop":     func(*l1t) error { return caddy.Stop() },
		"shutdown": func(*l1t) error { Shutdown(); return nil },
		"reload": func(x *l1t) error {
			h := m{"handler": "asf_connect", "session": "claude.main", "listener": "L1", "resolver": x.dns.addr()}
			config := caddyConfig(x.log, serverConfig(x.addr, "L1", h, nil))
			config["apps"].(m)["asf_transparent"] = x.config(nil)
			return loadConfig(config)
		},
	} {
		t.Run(name, func(t *testing.T) {
			x := startL1t(t, nil, nil, m{"hello_timeout": "5s"}, nil)
			waiting, c := x.connect(), x.connect()
			_, _ = waiting.Write(clientHello(t, "docs.example.com")[:60])
			if err := tls.Client(c, x.pool).Handshake(); err != nil {
				t.Fatal(err)
			}
			if name != "reload" {
				x.cutBy(func(*l1) error { return end(x) }, c, waiting)
				return
			}
			x.cutBy(func(*l1) error { return end(x) }, c) // who has not said a name is asked for it by the new policy
			x.newPolicyHolds()
		})
	}
}

func (x *l1t) newPolicyHolds() {
	x.t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for time.Now().Before(deadline) { // the old listener may have taken it, and is closed
		if err := tls.Client(x.connect(), x.pool).Handshake(); err != nil && strings.Contains(err.Error(), "access denied") {
			return
		}
	}
	x.t.Error("the new policy does not hold")
}

// TestTransparentClientGone: a client that leaves while its destination is looked up frees its slot.
func TestTransparentClientGone(t *testing.T) {
	x := startL1t(t, map[string]func(int) answer{"silent.example.com": fixed(answer{silent: true})},
		func(port uint16) []m { return []m{declared(1, "silent.example.com", port, nil)} }, m{"max_tunnels": 1, "dns_timeout": "20s"}, nil)
	c := x.connect()
	_, _ = c.Write(clientHello(t, "silent.example.com"))
	for deadline := time.Now().Add(5 * time.Second); len(x.dns.queries()) == 0 && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
	}
	_ = c.Close()
	if got := x.last(1); got.Reason != reasonClientGone || got.Decision != "allow" || got.Ms > 3000 {
		t.Errorf("%+v", got)
	}
	tc := tls.Client(x.connect(), x.pool)
	if err := tc.Handshake(); err != nil {
		t.Errorf("its slot is still taken: %v", err)
	}
}

// TestTransparentCounted: what repeats is counted by the ledger, like the refusals of L1.
func TestTransparentCounted(t *testing.T) {
	x := startL1t(t, nil, nil, nil, nil)
	decided.mu.Lock()
	decided.stages = []stage{{math.MaxInt64, 4, 1000, 10, time.Hour}}
	decided.mu.Unlock()
	hello := clientHello(t, "evil.test")
	for range 7 {
		_ = x.refused(hello, false)
	}
	decided.flush()
	if got := x.last(5); got.Count != 3 || got.Listener != "L1t" || got.Reason != reasonDeniedName {
		t.Errorf("%+v", got)
	}
}

// TestTransparentProvisionFailsClosed: without the list of a forward proxy nothing is served.
func TestTransparentProvisionFailsClosed(t *testing.T) {
	connect := m{"handler": "asf_connect"}
	for name, c := range map[string]struct{ handler, app m }{
		"no server":       {connect, m{"listen": "127.0.0.1:1", "server": "x"}},
		"no name":         {connect, m{"listen": "127.0.0.1:1"}},
		"no list":         {m{"handler": "asf_refuse"}, m{"listen": "127.0.0.1:1", "server": "s"}},
		"every address":   {connect, m{"listen": ":1", "server": "s"}},
		"ports":           {connect, m{"listen": "127.0.0.1:1-3", "server": "s"}},
		"no port":         {connect, m{"listen": "127.0.0.1", "server": "s"}},
		"datagrams":       {connect, m{"listen": "udp/127.0.0.1:1", "server": "s"}},
		"not our address": {connect, m{"listen": "203.0.113.1:1", "server": "s"}},
		"unknown key":     {connect, m{"listen": "127.0.0.1:1", "server": "s", "servre": "s"}},
	} {
		config := caddyConfig(t.TempDir()+"/log", serverConfig("127.0.0.1:0", "L1", c.handler, nil))
		config["apps"].(m)["asf_transparent"] = c.app
		if err := loadConfig(config); err == nil {
			t.Errorf("%s: loaded", name)
			_ = caddy.Stop()
		}
	}
}
