// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"golang.org/x/net/dns/dnsmessage"
)

// l1 is a forward proxy with one TLS destination, docs.example.com, at hostOK.
type l1 struct {
	*proxy
	dns    *fakeDNS
	tls    *sink // docs.example.com
	canary *sink // hostBarred, same port
	port   uint16
	target string
	pool   *tls.Config
}

// declared is a policy entry that lives at hostOK, which is the only loopback address it may resolve to.
func declared(i int, name string, port uint16, more m) m {
	e := m{"name": name, "ports": []uint16{port}, "tls": "required", "private": []string{hostOK + "/32"},
		"key": fmt.Sprintf("network.allow_domains[%d]", i)}
	for k, v := range more {
		e[k] = v
	}
	return e
}

func startL1(t *testing.T, zone map[string]func(int) answer, entries func(port uint16) []m, handler, guard m) *l1 {
	t.Helper()
	l, h := prepareL1(t, zone, entries, handler)
	l.proxy = startCaddy(t, "L1", h, guard)
	return l
}

// prepareL1 starts all but Caddy, and returns the handler's configuration.
func prepareL1(t *testing.T, zone map[string]func(int) answer, entries func(port uint16) []m, handler m) (*l1, m) {
	t.Helper()
	if zone == nil {
		zone = map[string]func(int) answer{}
	}
	zone["docs.example.com"] = fixed(answer{v4: []string{hostOK}})
	l := &l1{dns: startDNS(t, zone)}
	var pool = new(tls.Config)
	s, roots := echoTLS(t, hostOK, "docs.example.com")
	pool.RootCAs, pool.ServerName = roots, "docs.example.com"
	l.tls, l.port, l.pool = s, portOf(s), pool
	l.canary = listenOn(t, fmt.Sprintf("%s:%d", hostBarred, l.port), nil)
	l.target = fmt.Sprintf("docs.example.com:%d", l.port)
	list := []m{declared(0, "docs.example.com", l.port, nil)}
	if entries != nil {
		list = append(list, entries(l.port)...)
	}
	h := m{"handler": "asf_connect", "session": "claude.main", "listener": "L1", "policy": list, "resolver": l.dns.addr(),
		"deny_cidrs": []string{"198.18.0.0/24"}, "dns_timeout": "400ms", "dial_timeout": "600ms", "hello_timeout": "400ms", "idle_timeout": "5s"}
	for k, v := range handler {
		h[k] = v
	}
	return l, h
}

func connectTo(target string) string {
	return "CONNECT " + target + " HTTP/1.1\r\nHost: " + target + "\r\n\r\n"
}

type deniedCase struct {
	name, request  string
	status         int
	reason, detail string
	key            string
}

const listKey = "network.allow_domains"

// spellings is case P6, P7 and P9: every way to ask for something that is not exactly what was declared.
func spellings(port uint16) []deniedCase {
	p := fmt.Sprint(port)
	var out []deniedCase
	add := func(name, target string, status int, reason, detail, key string) { // a Host that net/http has no objection to
		out = append(out, deniedCase{name, "CONNECT " + target + " HTTP/1.1\r\nHost: x\r\n\r\n", status, reason, detail, key})
	}
	add("P1 undeclared", "x7f3.canary.test:443", 403, reasonDeniedName, "not-declared", listKey)
	add("P7 prefix", "notdocs.example.com:"+p, 403, reasonDeniedName, "not-declared", listKey)
	add("P7 parent", "example.com:"+p, 403, reasonDeniedName, "not-declared", listKey)
	add("P7 child", "a.docs.example.com:"+p, 403, reasonDeniedName, "not-declared", listKey)
	add("P7 suffix", "docs.example.com.evil.test:"+p, 403, reasonDeniedName, "not-declared", listKey)
	add("P7 punycode", "xn--dcs-0na.example.com:"+p, 403, reasonDeniedName, "not-declared", listKey)
	add("P6 leading dot", ".docs.example.com:"+p, 403, reasonDeniedName, "bad-label", "")
	add("P6 two dots at the end", "docs.example.com..:"+p, 403, reasonDeniedName, "bad-label", "")
	add("P6 inner dots", "docs..example.com:"+p, 403, reasonDeniedName, "bad-label", "")
	add("P6 long name", strings.Repeat("a.", 150)+"com:"+p, 403, reasonDeniedName, "too-long", "")
	add("P6 long label", strings.Repeat("a", 64)+".com:"+p, 403, reasonDeniedName, "bad-label", "")
	add("P6 userinfo", "evil@docs.example.com:"+p, 403, reasonDeniedName, "bad-char", "")
	add("P6 userinfo with password", "u:p@docs.example.com:"+p, 403, reasonDeniedName, "ip-literal", "")
	add("P6 path", "docs.example.com:"+p+"/x", 403, reasonDeniedPort, "bad-port", "")
	add("P6 query", "docs.example.com:"+p+"?x", 403, reasonDeniedPort, "bad-port", "")
	add("P6 underscore", "docs_x.example.com:"+p, 403, reasonDeniedName, "bad-char", "")
	add("P6 no port", "docs.example.com", 403, reasonDeniedPort, "no-port", "")
	add("P6 empty port", "docs.example.com:", 403, reasonDeniedPort, "bad-port", "")
	add("P6 leading zero", "docs.example.com:0"+p, 403, reasonDeniedPort, "bad-port", "")
	add("P6 99999", "docs.example.com:99999", 403, reasonDeniedPort, "bad-port", "")
	add("P6 port modulo 65536", fmt.Sprintf("docs.example.com:%d", 65536+int(port)%34464), 403, reasonDeniedPort, "bad-port", "")
	add("P9 port 22", "docs.example.com:22", 403, reasonDeniedPort, "not-declared", "network.allow_domains[0].ports")
	add("P9 port 5432", "docs.example.com:5432", 403, reasonDeniedPort, "not-declared", "network.allow_domains[0].ports")
	add("P9 cable address", "198.18.0.5:3129", 403, reasonDeniedName, "ip-literal", "")
	for _, ip := range []string{hostOK, "127.1", "0x7f.1", "0X7F.1", "2130706433", "0x7f000001", "017700000001", "127.0.0.10.", "10.0.0.1",
		"[::1]", "[::ffff:10.0.0.1]", "[fe80::1%25eth0]", "[::ffff:127.0.0.10]", "1.2.3.0x", "169.254.169.254"} {
		add("P5 "+ip, ip+":"+p, 403, reasonDeniedName, "ip-literal", "")
	}
	return out
}

// framings is case P8 and the rest of P6: requests that are no plain CONNECT.
func framings(target string) []deniedCase {
	req := func(s string) string { return strings.ReplaceAll(s, "TARGET", target) }
	return []deniedCase{
		{"P8 absolute form", req("GET http://docs.example.com/ HTTP/1.1\r\nHost: docs.example.com\r\n\r\n"), 403, reasonDeniedAbsoluteForm, "plain requests are not forwarded", ""},
		{"P8 absolute https", req("GET https://docs.example.com/ HTTP/1.1\r\nHost: docs.example.com\r\n\r\n"), 403, reasonDeniedAbsoluteForm, "plain requests are not forwarded", ""},
		{"P8 absolute POST", req("POST http://docs.example.com/ HTTP/1.1\r\nHost: docs.example.com\r\nContent-Length: 2\r\n\r\nhi"), 403, reasonDeniedAbsoluteForm, "plain requests are not forwarded", ""},
		{"P8 origin form", req("GET / HTTP/1.1\r\nHost: docs.example.com\r\n\r\n"), 405, reasonDeniedMethod, "only CONNECT is served here", ""},
		{"P8 TRACE", req("TRACE / HTTP/1.1\r\nHost: docs.example.com\r\n\r\n"), 405, reasonDeniedMethod, "only CONNECT is served here", ""},
		{"P8 OPTIONS", req("OPTIONS * HTTP/1.1\r\nHost: docs.example.com\r\n\r\n"), 405, reasonDeniedMethod, "only CONNECT is served here", ""},
		{"P8 lower-case connect", req("connect TARGET HTTP/1.1\r\nHost: x\r\n\r\n"), 405, reasonDeniedMethod, "only CONNECT is served here", ""},
		{"P8 ACME path", "GET /.well-known/acme-challenge/x HTTP/1.1\r\nHost: docs.example.com\r\n\r\n", 405, reasonDeniedMethod, "only CONNECT is served here", ""},
		{"P8 h2c upgrade", "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n", 405, reasonDeniedMethod, "only CONNECT is served here", ""},
		{"P6 CONNECT with length", req("CONNECT TARGET HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello"), 400, reasonBadRequest, "a CONNECT has no body (RFC 9110 section 9.3.6)", ""},
		{"P6 CONNECT chunked", req("CONNECT TARGET HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400, reasonBadRequest, "a CONNECT has no body (RFC 9110 section 9.3.6)", ""},
		{"P6 Host is declared, target is not", "CONNECT evil.test:443 HTTP/1.1\r\nHost: " + target + "\r\n\r\n", 403, reasonDeniedName, "not-declared", listKey},
		{"P6 full-width dot", "CONNECT docs\uff0eexample.com:443 HTTP/1.1\r\nHost: x\r\n\r\n", 400, reasonBadRequest, "refused by the HTTP server before any route", ""},
		{"P6 IDN in UTF-8", "CONNECT d\u00f6cs.example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n", 400, reasonBadRequest, "refused by the HTTP server before any route", ""},
		{"P8 endless method", strings.Repeat("A", 40) + " / HTTP/1.1\r\nHost: x\r\n\r\n", 405, reasonDeniedMethod, "refused by the HTTP server before any route", ""},
	}
}

// TestDenied is cases P1, P3, P5, P6, P7, P8, P9: refused for the right reason in status, phrase, header, body and log,
// one line each, without a single DNS query or connection. (P3: no resolver is needed to say so.)
func TestDenied(t *testing.T) {
	l := startL1(t, nil, nil, nil, nil)
	n := 0
	for _, c := range append(spellings(l.port), framings(l.target)...) {
		t.Run(c.name, func(t *testing.T) {
			l.t = t
			r := l.raw(c.request)
			n++
			got := l.last(n)
			if r.code != c.status || r.phrase != c.reason || r.header.Get("X-Asf-Proxy") != c.reason {
				t.Errorf("answer %d %q %v", r.code, r.phrase, r.header)
			}
			if r.header.Get("X-Asf-Key") != c.key || r.rest != "" || r.header.Get("Server") != "" {
				t.Errorf("key %q, rest %q, header %v", r.header.Get("X-Asf-Key"), r.rest, r.header)
			}
			var b refusalBody
			if err := json.Unmarshal([]byte(r.body), &b); err != nil || b.Error != c.reason || b.Detail != c.detail || b.Key != c.key || b.Remedy == "" {
				t.Errorf("body %s", r.body)
			}
			if got.Decision != "deny" || got.Reason != c.reason || got.Detail != c.detail || got.Session != "claude.main" || got.Listener != "L1" || got.Logger != "asf" {
				t.Errorf("line %+v", got)
			}
		})
	}
	l.t = t
	if q := l.dns.queries(); len(q) != 0 {
		t.Errorf("P1: denied names were looked up: %v", q)
	}
	if l.tls.conns.Load() != 0 || l.canary.conns.Load() != 0 {
		t.Error("a refused request reached a host")
	}
}

// TestDeniedWithoutResolver is case P3: policy is reported as policy where no resolver answers at all.
func TestDeniedWithoutResolver(t *testing.T) {
	l := startL1(t, nil, nil, m{"resolver": "127.0.0.99:9"}, nil)
	if r := l.raw(connectTo("undeclared.test:443")); r.header.Get("X-Asf-Proxy") != reasonDeniedName {
		t.Errorf("%+v", r)
	}
}

// TestParserRefusals is case P6's rest: what net/http refuses by itself gets a line from the guard.
func TestParserRefusals(t *testing.T) {
	l := startL1(t, nil, nil, nil, nil)
	n := 0
	for name, request := range map[string]string{
		"NUL":         "CONNECT docs.example.com\x00:443 HTTP/1.1\r\nHost: x\r\n\r\n",
		"CR":          "CONNECT docs.example.com\r:443 HTTP/1.1\r\nHost: x\r\n\r\n",
		"TAB":         "CONNECT docs.example.com\t:443 HTTP/1.1\r\nHost: x\r\n\r\n",
		"blank":       "CONNECT docs.example.com :443 HTTP/1.1\r\nHost: x\r\n\r\n",
		"percent":     "CONNECT docs.example.com%00:443 HTTP/1.1\r\nHost: x\r\n\r\n",
		"plus port":   "CONNECT docs.example.com:+443 HTTP/1.1\r\nHost: x\r\n\r\n",
		"fragment":    "CONNECT docs.example.com:443#x HTTP/1.1\r\nHost: x\r\n\r\n",
		"odd Host":    "CONNECT docs.example.com:443 HTTP/1.1\r\nHost: a@docs.example.com\r\n\r\n",
		"bare v6":     "CONNECT ::1:443 HTTP/1.1\r\nHost: x\r\n\r\n",
		"two hosts":   "GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
		"no protocol": "CONNECT docs.example.com:443\r\n\r\n",
		"h2 preface":  "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
		"big header":  "CONNECT docs.example.com:443 HTTP/1.1\r\nHost: x\r\nX: " + strings.Repeat("a", 30000) + "\r\n\r\n",
		"userinfo":    "CONNECT user:hunter2@docs.example.com:443 x\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			l.t = t
			r := l.raw(request)
			n++
			if got := l.last(n); got.Reason != reasonBadRequest || got.Decision != "deny" || r.code == 200 {
				t.Errorf("%+v %+v", r, got)
			} else if strings.Contains(got.Detail, "hunter2") {
				t.Errorf("a credential was logged: %+v", got)
			}
		})
	}
	if q := l.dns.queries(); len(q) != 0 {
		t.Errorf("looked up: %v", q)
	}
}

// TestSlowHeader: a request that never gets complete is cut by the server's header timeout, and leaves a line.
func TestSlowHeader(t *testing.T) {
	l := startL1(t, nil, nil, nil, nil)
	c := l.dial()
	_, _ = io.WriteString(c, "CONNECT docs.example.com:443 HTTP/1.1\r\nHo")
	start := time.Now()
	_, _ = io.ReadAll(c)
	if d := time.Since(start); d > 3*time.Second {
		t.Errorf("cut after %v", d)
	}
	if got := l.last(1); got.Reason != reasonBadRequest {
		t.Errorf("%+v", got)
	}
}

// TestPipelined: nothing that is sent behind a refused request is ever parsed.
func TestPipelined(t *testing.T) {
	l := startL1(t, nil, nil, nil, nil)
	r := l.raw(connectTo("evil.test:443") + connectTo(l.target))
	if r.code != 403 || r.rest != "" {
		t.Errorf("%+v", r)
	}
	time.Sleep(50 * time.Millisecond)
	if got := l.last(1); got.Reason != reasonDeniedName || l.tls.conns.Load() != 0 {
		t.Errorf("%+v", got)
	}
}

// handshake speaks TLS through an open tunnel and echoes a word.
func (l *l1) handshake(c net.Conn) {
	l.t.Helper()
	tc := tls.Client(c, l.pool)
	if _, err := io.WriteString(tc, "hello"); err != nil {
		l.t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := io.ReadFull(tc, b); err != nil || string(b) != "hello" {
		l.t.Fatalf("%q %v", b, err)
	}
	_ = tc.Close()
}

// TestAllowed: the spellings of one declared name that are that name, and what the line says of a tunnel.
func TestAllowed(t *testing.T) {
	l := startL1(t, nil, nil, nil, nil)
	upper := strings.ToUpper(l.target)
	dotted := strings.Replace(l.target, ".com:", ".com.:", 1)
	for i, request := range []string{
		connectTo(l.target), connectTo(upper), connectTo(dotted),
		"CONNECT " + l.target + " HTTP/1.0\r\n\r\n", // Python's http.client
		"CONNECT " + l.target + " HTTP/1.1\r\nHost: elsewhere.test\r\nProxy-Authorization: Basic eDp5\r\nContent-Length: 0\r\n\r\n",
	} {
		c := l.dial()
		_, _ = io.WriteString(c, request)
		if head := readHead(t, c); head != "HTTP/1.1 200 Connection established\r\n\r\n" {
			t.Fatalf("%q: %q", request, head)
		}
		l.handshake(c)
		got := l.last(i + 1)
		want := fmt.Sprintf("%s:%d", hostOK, l.port)
		if got.Decision != "allow" || got.Reason != "ok" || got.Host != "docs.example.com" || got.Addr != want || got.Up < 100 || got.Down < 100 || got.Key != "network.allow_domains[0]" {
			t.Errorf("%+v", got)
		}
	}
	for _, q := range l.dns.queries() {
		if q != "docs.example.com TypeA" {
			t.Errorf("one absolute lookup of the canonical name is expected, got %q", q)
		}
	}
	if l.canary.conns.Load()+proxyCanary.conns.Load() != 0 {
		t.Error("P14: proxy variables of the environment were used")
	}
}

func brokenZone() map[string]func(int) answer {
	return map[string]func(int) answer{
		"refused.example.com":  fixed(answer{v4: []string{hostOK}}),
		"timeout.example.com":  fixed(answer{v4: []string{"127.0.0.11"}}),
		"servfail.example.com": fixed(answer{rcode: dnsmessage.RCodeServerFailure}),
		"silent.example.com":   fixed(answer{silent: true}),
		"nodata.example.com":   fixed(answer{}),
	}
}

// TestUpstreamTrouble is case P2: never reported as policy.
func TestUpstreamTrouble(t *testing.T) {
	full := blackhole(t, "127.0.0.11")
	closed := freePort(t, hostOK)
	l := startL1(t, brokenZone(), func(uint16) []m {
		return []m{declared(1, "refused.example.com", closed, nil),
			declared(2, "timeout.example.com", full, m{"private": []string{"127.0.0.11/32"}}),
			declared(3, "servfail.example.com", 443, nil), declared(4, "silent.example.com", 443, nil),
			declared(5, "nx.example.com", 443, nil), declared(6, "nodata.example.com", 443, nil)}
	}, nil, nil)
	for i, c := range []struct {
		target, reason string
		status         int
	}{
		{fmt.Sprintf("refused.example.com:%d", closed), reasonUpstreamRefused, 502},
		{fmt.Sprintf("timeout.example.com:%d", full), reasonUpstreamTimeout, 504},
		{"servfail.example.com:443", reasonDNSFailure, 502},
		{"silent.example.com:443", reasonDNSTimeout, 504},
		{"nx.example.com:443", reasonDNSNotFound, 502},
		{"nodata.example.com:443", reasonDNSNotFound, 502},
	} {
		r := l.raw(connectTo(c.target))
		got := l.last(i + 1)
		if r.code != c.status || r.phrase != c.reason || r.header.Get("X-Asf-Proxy") != c.reason || r.header.Get("X-Asf-Key") != "" {
			t.Errorf("%s: %+v", c.target, r)
		}
		if got.Decision != "allow" || got.Reason != c.reason {
			t.Errorf("%s: upstream trouble is no denial: %+v", c.target, got)
		}
	}
	for _, q := range l.dns.queries() { // no search domain, whatever resolv.conf says
		if !strings.HasSuffix(strings.Fields(q)[0], ".example.com") {
			t.Errorf("query %q", q)
		}
	}
}

// blackhole is a port whose backlog is full, so that connecting to it times out.
func blackhole(t *testing.T, host string) uint16 {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	sa := &syscall.SockaddrInet4{Addr: [4]byte(net.ParseIP(host).To4())}
	if err = syscall.Bind(fd, sa); err == nil {
		err = syscall.Listen(fd, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	name, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port := name.(*syscall.SockaddrInet4).Port
	for range 4 {
		if c, err := net.DialTimeout("tcp", fmt.Sprintf("%s:%d", host, port), 100*time.Millisecond); err == nil {
			t.Cleanup(func() { _ = c.Close() })
		}
	}
	return uint16(port)
}

// barredAnswers are answers that give nothing that may be dialled.
func barredAnswers() map[string]answer {
	return map[string]answer{
		"private":   {v4: []string{"10.1.2.3"}},
		"metadata":  {v4: []string{"169.254.169.254"}},
		"cgnat":     {v4: []string{"100.64.0.1"}},
		"loopback":  {v4: []string{hostBarred}},
		"zero":      {v4: []string{"0.0.0.0"}},
		"mapped":    {v6: []string{"::ffff:" + hostBarred}},
		"nat64":     {v6: []string{"64:ff9b::7f00:42"}},
		"sixtofour": {v6: []string{"2002:7f00:42::1"}},
		"v6lo":      {v6: []string{"::1"}},
		"ula":       {v6: []string{"fd00:ec2::254"}},
		"alias":     {cname: "internal.corp.test", v4: []string{hostBarred}},
		"cable":     {v4: []string{"198.18.0.6"}}, // also in private: deny_cidrs wins
		"many":      {v4: []string{"10.0.0.1", hostBarred, "192.168.0.1"}},
	}
}

// TestAddresses is case P4: a declared name that resolves to where it may not.
func TestAddresses(t *testing.T) {
	zone := map[string]func(int) answer{}
	var names []string
	for n, a := range barredAnswers() {
		zone[n+".example.com"] = fixed(a)
		names = append(names, n)
	}
	l := startL1(t, zone, func(port uint16) []m {
		var out []m
		for i, n := range names {
			e := declared(i+1, n+".example.com", port, nil)
			if n == "cable" {
				e["private"] = []string{"198.18.0.0/15"}
			}
			out = append(out, e)
		}
		return out
	}, nil, nil)
	for i, n := range names {
		r := l.raw(connectTo(fmt.Sprintf("%s.example.com:%d", n, l.port)))
		got := l.last(i + 1)
		if r.code != 403 || r.header.Get("X-Asf-Proxy") != reasonDeniedAddress || got.Decision != "deny" || got.Reason != reasonDeniedAddress || got.Detail == "" {
			t.Errorf("%s: %+v %+v", n, r, got)
		}
		wantKey := fmt.Sprintf("network.allow_domains[%d].private", i+1)
		if n == "cable" {
			wantKey = "" // nothing opens it
		}
		if r.header.Get("X-Asf-Key") != wantKey {
			t.Errorf("%s: key %q, want %q", n, r.header.Get("X-Asf-Key"), wantKey)
		}
	}
	if l.canary.conns.Load() != 0 {
		t.Error("P4: a barred address was dialled")
	}
}

// TestMixedAndRebinding is case P4: of a mixed answer only what may be dialled is; an answer that changes between two
// queries changes nothing, because there is one query and a checked literal is dialled.
func TestMixedAndRebinding(t *testing.T) {
	flip := func(n int) answer {
		if n%2 == 1 {
			return answer{v4: []string{hostBarred}}
		}
		return answer{v4: []string{hostOK}}
	}
	l := startL1(t, map[string]func(int) answer{
		"mixed.example.com": fixed(answer{v4: []string{hostBarred, hostOK, "10.0.0.1"}}),
		"flip.example.com":  flip,
	}, func(port uint16) []m {
		return []m{declared(1, "mixed.example.com", port, nil), declared(2, "flip.example.com", port, nil)}
	}, nil, nil)
	for range 6 {
		_ = l.open(fmt.Sprintf("mixed.example.com:%d", l.port)).Close()
	}
	allowed := 0
	for range 12 {
		if l.raw(connectTo(fmt.Sprintf("flip.example.com:%d", l.port))).code == 200 {
			allowed++
		}
	}
	lines := l.wait(18)
	if allowed != 6 {
		t.Errorf("%d of 12 allowed, want every second one: one lookup per request", allowed)
	}
	for _, x := range lines {
		if x.Decision == "allow" && x.Addr != fmt.Sprintf("%s:%d", hostOK, l.port) {
			t.Errorf("%+v", x)
		}
	}
	if l.canary.conns.Load() != 0 {
		t.Error("P4: a barred address was dialled")
	}
}

// TestReachFallsThrough: an address that refuses does not hide the next one.
func TestReachFallsThrough(t *testing.T) {
	l := startL1(t, map[string]func(int) answer{"two.example.com": fixed(answer{v4: []string{"127.0.0.12", hostOK}})},
		func(port uint16) []m {
			return []m{declared(1, "two.example.com", port, m{"private": []string{"127.0.0.0/24"}})}
		}, nil, nil)
	_ = l.open(fmt.Sprintf("two.example.com:%d", l.port)).Close()
	if got := l.last(1); got.Addr != fmt.Sprintf("%s:%d", hostOK, l.port) {
		t.Errorf("%+v", got)
	}
}

type wrongHello struct {
	name string
	send []byte
	end  bool // close the sending side
}

func wrongHellos(t *testing.T) []wrongHello {
	return []wrongHello{
		{"other name", clientHello(t, "evil.example.com"), false},
		{"parent name", clientHello(t, "example.com"), false},
		{"no name", clientHello(t, ""), false},
		{"http", []byte("GET / HTTP/1.1\r\nHost: plain.example.com\r\n\r\n"), false},
		{"ssh", []byte("SSH-2.0-x\r\n"), false},
		{"half a hello", clientHello(t, "plain.example.com")[:60], true},
		{"silence", nil, false},
	}
}

// TestServerName is case P10: 200 was said, then something else came; it is cut, and the host sees no byte.
func TestServerName(t *testing.T) {
	plain := listenOn(t, hostOK+":0", nil)
	port := portOf(plain)
	l := startL1(t, map[string]func(int) answer{"plain.example.com": fixed(answer{v4: []string{hostOK}})},
		func(uint16) []m { return []m{declared(1, "plain.example.com", port, nil)} }, nil, nil)
	target := fmt.Sprintf("plain.example.com:%d", port)
	for i, c := range wrongHellos(t) {
		conn := l.open(target)
		_, _ = conn.Write(c.send)
		if c.end {
			_ = conn.CloseWrite()
		}
		if b, _ := io.ReadAll(conn); len(b) != 0 {
			t.Errorf("%s: got %q", c.name, b)
		}
		got := l.last(i + 1)
		if got.Decision != "deny" || got.Reason != reasonDeniedSNI || got.Detail == "" || got.Key != "network.allow_domains[1].tls" || got.Up != 0 {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	if s := plain.bytes(); s != "" {
		t.Errorf("P10: the host got %q", s)
	}
	_ = l.open(target).Close() // a probe's control: 200, then nothing
	if got := l.last(8); got.Decision != "allow" || got.Reason != reasonClientGone {
		t.Errorf("%+v", got)
	}
}

// TestTLSAny: tls any skips the hello check and only that.
func TestTLSAny(t *testing.T) {
	echo := listenOn(t, hostOK+":0", func(c net.Conn, _ *sink) { _, _ = io.Copy(c, c) })
	port := portOf(echo)
	l := startL1(t, map[string]func(int) answer{"any.example.com": fixed(answer{v4: []string{hostOK}}), "bad.example.com": fixed(answer{v4: []string{hostBarred}})},
		func(uint16) []m {
			return []m{declared(1, "any.example.com", port, m{"tls": "any"}), declared(2, "bad.example.com", port, m{"tls": "any"})}
		}, nil, nil)
	c := l.open(fmt.Sprintf("any.example.com:%d", port))
	_, _ = io.WriteString(c, "SSH-2.0-x\r\n")
	_ = c.CloseWrite() // half-close: the answer still comes
	if b, err := io.ReadAll(c); string(b) != "SSH-2.0-x\r\n" || err != nil {
		t.Errorf("%q %v", b, err)
	}
	if got := l.last(1); got.Reason != "ok" || got.Up != 11 || got.Down != 11 {
		t.Errorf("%+v", got)
	}
	if r := l.raw(connectTo(fmt.Sprintf("bad.example.com:%d", port))); r.header.Get("X-Asf-Proxy") != reasonDeniedAddress {
		t.Errorf("%+v", r)
	}
}

// TestEarlyBytes: a client that sends its hello together with the CONNECT loses nothing.
func TestEarlyBytes(t *testing.T) {
	got := make(chan []byte, 1)
	hello := clientHello(t, "early.example.com")
	host := listenOn(t, hostOK+":0", func(c net.Conn, _ *sink) {
		b := make([]byte, len(hello))
		_, _ = io.ReadFull(c, b)
		got <- b
		_, _ = io.WriteString(c, "bye")
	})
	port := portOf(host)
	l := startL1(t, map[string]func(int) answer{"early.example.com": fixed(answer{v4: []string{hostOK}})},
		func(uint16) []m { return []m{declared(1, "early.example.com", port, nil)} }, nil, nil)
	c := l.dial()
	_, _ = c.Write(append([]byte(connectTo(fmt.Sprintf("early.example.com:%d", port))), hello...))
	_ = readHead(t, c)
	select {
	case b := <-got:
		if string(b) != string(hello) {
			t.Error("the hello was changed on its way")
		}
	case <-time.After(3 * time.Second):
		t.Fatal("the hello did not arrive")
	}
	if b, _ := io.ReadAll(c); string(b) != "bye" {
		t.Errorf("%q", b)
	}
}

// TestIdle: a tunnel in which nothing moves ends; one direction that moves keeps both.
func TestIdle(t *testing.T) {
	slow := listenOn(t, hostOK+":0", func(c net.Conn, _ *sink) {
		for range 8 {
			time.Sleep(100 * time.Millisecond)
			if _, err := io.WriteString(c, "."); err != nil {
				return
			}
		}
		_, _ = io.Copy(io.Discard, c)
	})
	port := portOf(slow)
	l := startL1(t, map[string]func(int) answer{"slow.example.com": fixed(answer{v4: []string{hostOK}})},
		func(uint16) []m { return []m{declared(1, "slow.example.com", port, m{"tls": "any"})} }, m{"idle_timeout": "300ms"}, nil)
	c := l.open(fmt.Sprintf("slow.example.com:%d", port))
	if b, _ := io.ReadAll(c); string(b) != "........" {
		t.Errorf("%q", b)
	}
	if got := l.last(1); got.Reason != reasonIdleTimeout || got.Decision != "allow" || got.Ms < 1000 {
		t.Errorf("%+v", got)
	}
}

// TestLimits: tunnels per handler, connections per listener.
func TestLimits(t *testing.T) {
	l := startL1(t, nil, nil, m{"max_tunnels": 2, "hello_timeout": "5s"}, m{"max_conns": 4})
	a, b := l.open(l.target), l.open(l.target)
	if r := l.raw(connectTo(l.target)); r.code != 503 || r.phrase != reasonLimitTunnels || r.header.Get("Retry-After") != "1" {
		t.Errorf("%+v", r)
	}
	l.last(1)
	time.Sleep(200 * time.Millisecond) // the refused connection is let go
	idle := []net.Conn{l.dial(), l.dial()}
	time.Sleep(50 * time.Millisecond)
	if r := readReply(t, l.dial()); r.code != 503 || r.phrase != reasonLimitConnections {
		t.Errorf("%+v", r)
	}
	if got := l.last(2); got.Reason != reasonLimitConnections || got.Decision != "deny" {
		t.Errorf("%+v", got)
	}
	for _, c := range append(idle, a, b) {
		_ = c.Close()
	}
	time.Sleep(100 * time.Millisecond)
	c := l.open(l.target) // both are given back
	l.handshake(c)
}

// cutBy ends things and checks that every connection is closed at once, with a line that says so.
func (l *l1) cutBy(end func(*l1) error, conns ...net.Conn) {
	l.t.Helper()
	start := time.Now()
	if err := end(l); err != nil {
		l.t.Fatal(err)
	}
	for _, x := range conns {
		_ = x.SetReadDeadline(time.Now().Add(2 * time.Second))
		if _, err := io.Copy(io.Discard, x); timedOut(err) {
			l.t.Error("P15: the tunnel is still open")
		}
	}
	if d := time.Since(start); d > time.Second {
		l.t.Errorf("took %v", d)
	}
	for _, got := range l.wait(len(conns)) {
		if got.Reason != reasonClosed || got.Decision != "allow" {
			l.t.Errorf("%+v", got)
		}
	}
}

// TestCutAtClose is case P15: Cleanup, a reload and Shutdown each cut open tunnels and log them.
func TestCutAtClose(t *testing.T) {
	for name, end := range map[string]func(l *l1) error{
		"stop":     func(*l1) error { return caddy.Stop() },
		"shutdown": func(*l1) error { Shutdown(); return nil },
		"reload": func(l *l1) error {
			h := m{"handler": "asf_connect", "session": "claude.main", "listener": "L1", "resolver": l.dns.addr()}
			return loadConfig(caddyConfig(l.log, serverConfig(l.addr, "L1", h, nil)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := startL1(t, nil, nil, m{"hello_timeout": "5s"}, nil)
			waiting := l.open(l.target) // no hello yet
			c := l.open(l.target)
			tc := tls.Client(c, l.pool)
			if err := tc.Handshake(); err != nil {
				t.Fatal(err)
			}
			l.cutBy(end, c, waiting)
			if name == "reload" {
				r := l.raw(connectTo(l.target))
				for i := 0; i < 20 && r.code == 0; i++ { // the old listener took it, and is closed
					r = l.raw(connectTo(l.target))
				}
				if r.header.Get("X-Asf-Proxy") != reasonDeniedName {
					t.Errorf("the new policy does not hold: %+v", r)
				}
			}
		})
	}
}

// TestClientGone: a client that leaves while its destination is looked up frees its slot.
func TestClientGone(t *testing.T) {
	l := startL1(t, map[string]func(int) answer{"silent.example.com": fixed(answer{silent: true})},
		func(uint16) []m { return []m{declared(1, "silent.example.com", 443, nil)} }, m{"max_tunnels": 1, "dns_timeout": "20s"}, nil)
	c := l.dial()
	_, _ = io.WriteString(c, connectTo("silent.example.com:443"))
	time.Sleep(100 * time.Millisecond)
	_ = c.Close()
	if got := l.last(1); got.Reason != reasonClientGone || got.Decision != "allow" || got.Ms > 3000 {
		t.Errorf("%+v", got)
	}
	_ = l.open(l.target).Close()
}

// TestProvisionFailsClosed: a configuration in doubt serves nothing.
func TestProvisionFailsClosed(t *testing.T) {
	ok := m{"name": "a.example.com", "ports": []int{443}, "key": "k"}
	for name, h := range map[string]m{
		"bad name":       {"policy": []m{{"name": "A.example.com"}}},
		"literal":        {"policy": []m{{"name": "127.0.0.1"}}},
		"wildcard":       {"policy": []m{{"name": "*.example.com"}}},
		"duplicate":      {"policy": []m{ok, ok}},
		"port 0":         {"policy": []m{{"name": "a.example.com", "ports": []int{0}}}},
		"port 70000":     {"policy": []m{{"name": "a.example.com", "ports": []int{70000}}}},
		"tls word":       {"policy": []m{{"name": "a.example.com", "tls": "none"}}},
		"private":        {"policy": []m{{"name": "a.example.com", "private": []string{"10.0.0.0"}}}},
		"mapped private": {"policy": []m{{"name": "a.example.com", "private": []string{"::ffff:10.0.0.0/104"}}}},
		"deny":           {"deny_cidrs": []string{"x"}},
		"resolver":       {"resolver": "dns.example.com"},
		"unknown key":    {"polici": []m{}},
	} {
		h["handler"] = "asf_connect"
		log := t.TempDir() + "/log"
		if err := loadConfig(caddyConfig(log, serverConfig("127.0.0.1:0", "L1", h, nil))); err == nil {
			t.Errorf("%s: loaded", name)
			_ = caddy.Stop()
		}
	}
}
