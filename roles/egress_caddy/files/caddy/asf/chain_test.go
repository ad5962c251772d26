// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"bufio"
	"crypto/tls"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	"golang.org/x/net/dns/dnsmessage"
)

const (
	hostProxy   = "127.0.0.20"
	credentials = "operator:chain-canary-7f3a"
	basic       = "Basic b3BlcmF0b3I6Y2hhaW4tY2FuYXJ5LTdmM2E="
)

// The tests' proxy lives on loopback, where none may be; one address of it is opened, the others stay barred.
func init() { chainRanges = append(chainRanges, prefixes(hostProxy+"/32")...) }

// testProxy is an operator's proxy. It keeps the head of each request, and answers by script or forwards to dest.
type testProxy struct {
	*sink
	mu    sync.Mutex
	heads []string
	seen  []byte // what was sent behind the request
	dest  string
	reply string // instead of a tunnel; "hang" answers nothing
}

func (p *testProxy) requests() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.heads...)
}

func (p *testProxy) serve(c net.Conn) {
	br := bufio.NewReader(c)
	var head strings.Builder
	for !strings.HasSuffix(head.String(), "\r\n\r\n") {
		b, err := br.ReadByte()
		if err != nil {
			return
		}
		head.WriteByte(b)
	}
	p.mu.Lock()
	p.heads = append(p.heads, head.String())
	reply := p.reply
	p.mu.Unlock()
	if reply == "hang" {
		_, _ = io.Copy(io.Discard, br)
		return
	}
	if reply != "" {
		_, _ = io.WriteString(c, reply)
		b, _ := io.ReadAll(io.LimitReader(br, 1<<10))
		p.mu.Lock()
		p.seen = append(p.seen, b...)
		p.mu.Unlock()
		return
	}
	up, err := net.Dial("tcp", p.dest)
	if err != nil {
		_, _ = io.WriteString(c, "HTTP/1.1 502 Bad Gateway\r\n\r\n")
		return
	}
	defer func() { _ = up.Close() }()
	// An interim answer, and a length that a client must not believe (RFC 9110 section 9.3.6).
	_, _ = io.WriteString(c, "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 200 OK\r\nContent-Length: 7\r\nVia: 1.1 test\r\n\r\n")
	go func() { _, _ = io.Copy(up, br); _ = up.(*net.TCPConn).CloseWrite() }()
	_, _ = io.Copy(c, up)
}

// startProxy serves plain HTTP, or TLS with a certificate for proxy.example.com, whose PEM file it returns.
func startProxy(t *testing.T, dest, reply string, secure bool) (*testProxy, string) {
	t.Helper()
	p := &testProxy{dest: dest, reply: reply}
	file := filepath.Join(t.TempDir(), "ca.pem")
	handle := func(c net.Conn, _ *sink) { p.serve(c) }
	if secure {
		cert, _ := selfSigned(t, "proxy.example.com")
		block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})
		if err := os.WriteFile(file, block, 0o600); err != nil {
			t.Fatal(err)
		}
		config := &tls.Config{Certificates: []tls.Certificate{cert}, NextProtos: []string{"h2", "http/1.1"}}
		handle = func(c net.Conn, _ *sink) { p.serve(tls.Server(c, config)) }
	}
	p.sink = listenOn(t, hostProxy+":0", handle)
	return p, file
}

func credentialsFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func proxyZone() map[string]func(int) answer {
	return map[string]func(int) answer{"proxy.example.com": fixed(answer{v4: []string{hostProxy}})}
}

// chainedL1 is L1 with docs.example.com behind a proxy. The zone knows docs.example.com too: nobody may ask.
func chainedL1(t *testing.T, secure bool, reply string, chain, more m) (*l1, *testProxy) {
	t.Helper()
	p, ca := startProxy(t, "", reply, secure)
	c := m{"url": fmt.Sprintf("http://proxy.example.com:%d", portOf(p)), "credentials_file": credentialsFile(t, credentials+"\n")}
	if secure {
		c["url"], c["ca_file"] = fmt.Sprintf("https://proxy.example.com:%d", portOf(p)), ca
	}
	for k, v := range chain {
		c[k] = v
	}
	handler := m{"chain": c}
	for k, v := range more {
		handler[k] = v
	}
	l := startL1(t, proxyZone(), func(port uint16) []m { return []m{declared(1, "any.example.com", port, m{"tls": "any"})} }, handler, nil)
	p.mu.Lock()
	p.dest = l.tls.Addr().String()
	p.mu.Unlock()
	return l, p
}

// TestChain: an allowed tunnel goes to the proxy, by name, with the credentials, and to nobody else.
func TestChain(t *testing.T) {
	for name, secure := range map[string]bool{"http": false, "https": true} {
		t.Run(name, func(t *testing.T) {
			l, p := chainedL1(t, secure, "", nil, nil)
			l.handshake(l.open(l.target))
			got := l.last(1)
			if got.Reason != "ok" || got.Addr != p.Addr().String() || got.Up < 100 || got.Key != "network.allow_domains[0]" {
				t.Errorf("%+v", got)
			}
			want := fmt.Sprintf("CONNECT %[1]s HTTP/1.1\r\nHost: %[1]s\r\nProxy-Authorization: %[2]s\r\n\r\n", l.target, basic)
			if r := p.requests(); len(r) != 1 || r[0] != want {
				t.Errorf("%q", r)
			}
			for _, q := range l.dns.queries() {
				if !strings.HasPrefix(q, "proxy.example.com ") {
					t.Errorf("the name is the proxy's to resolve, not ours: %q", q)
				}
			}
			if n := l.tls.conns.Load(); n != 1 {
				t.Errorf("the destination saw %d connections, the proxy's alone are expected", n)
			}
			if raw, _ := os.ReadFile(l.log); strings.Contains(string(raw), "chain-canary") || strings.Contains(string(raw), basic[6:]) {
				t.Error("S4: credentials in the log")
			}
		})
	}
}

// TestWithoutChain is the mutation: the same list without the chain dials the destination itself.
func TestWithoutChain(t *testing.T) {
	l, p := chainedL1(t, false, "", nil, m{"chain": nil})
	l.handshake(l.open(l.target))
	if got := l.last(1); got.Addr != l.tls.Addr().String() || p.conns.Load() != 0 {
		t.Errorf("%+v", got)
	}
}

// TestChainLiteral: a proxy given by address needs no resolver at all.
func TestChainLiteral(t *testing.T) {
	p, _ := startProxy(t, "", "", false)
	l := startL1(t, nil, nil, m{"chain": m{"url": "http://" + p.Addr().String()}}, nil)
	p.mu.Lock()
	p.dest = l.tls.Addr().String()
	p.mu.Unlock()
	l.handshake(l.open(l.target))
	if r := p.requests(); len(r) != 1 || strings.Contains(r[0], "Authorization") || len(l.dns.queries()) != 0 {
		t.Errorf("%q %q", r, l.dns.queries())
	}
}

// TestChainAfterPolicy: what the list refuses never reaches the proxy, nor its resolver (P1, P5, P7, P8, P9).
func TestChainAfterPolicy(t *testing.T) {
	l, p := chainedL1(t, false, "", nil, nil)
	n := 0
	for _, c := range spellings(l.port) {
		l.raw(c.request)
		n++
	}
	for i, request := range []string{connectTo("undeclared.example.com:443"), connectTo("docs.example.com:22"), "GET http://docs.example.com/ HTTP/1.1\r\nHost: x\r\n\r\n"} {
		if r := l.raw(request); r.code != 403 {
			t.Errorf("%d: %+v", i, r)
		}
	}
	if p.conns.Load() != 0 || len(l.dns.queries()) != 0 {
		t.Errorf("%d connections, queries %q (%d spellings)", p.conns.Load(), l.dns.queries(), n)
	}
}

// TestChainServerName is case P10: not one byte of a wrong hello is given to the proxy.
func TestChainServerName(t *testing.T) {
	l, p := chainedL1(t, false, "HTTP/1.1 200 OK\r\n\r\n", nil, nil)
	c := l.open(l.target)
	_ = tls.Client(c, &tls.Config{ServerName: "other.example.com", InsecureSkipVerify: true}).Handshake()
	_ = c.Close()
	if got := l.last(1); got.Reason != reasonDeniedSNI || got.Decision != "deny" || got.Up != 0 {
		t.Errorf("%+v", got)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.seen) != 0 {
		t.Errorf("the proxy got %q", p.seen)
	}
}

// chainTroubles are answers of a proxy that gives no tunnel.
func chainTroubles() []struct {
	name, reply, reason string
	status              int
} {
	long := "HTTP/1.1 200 OK\r\nX-Long: " + strings.Repeat("a", 20<<10) + "\r\n\r\n"
	return []struct {
		name, reply, reason string
		status              int
	}{
		{"407", "HTTP/1.1 407 Proxy Authentication Required\r\nProxy-Authenticate: Basic realm=\"x\"\r\n\r\n", reasonChainAuth, 502},
		{"403", "HTTP/1.1 403 Forbidden\r\nContent-Length: 3\r\n\r\nno\n", reasonChainDenied, 502},
		{"404", "HTTP/1.1 404 Not Found\r\n\r\n", reasonChainDenied, 502},
		{"500", "HTTP/1.1 500 " + credentials + "\r\nX-Echo: " + basic + "\r\n\r\n" + credentials, reasonChainFailure, 502},
		{"504", "HTTP/1.1 504 Gateway Timeout\r\n\r\n", reasonChainTimeout, 504},
		{"redirect", "HTTP/1.1 302 Found\r\nLocation: http://evil.test/\r\n\r\n", reasonChainAnswer, 502},
		{"switch", "HTTP/1.1 101 Switching Protocols\r\n\r\n", reasonChainAnswer, 502},
		{"interim for ever", strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 20), reasonChainAnswer, 502},
		{"garbage", "SSH-2.0-OpenSSH_9.2\r\n\r\n", reasonChainAnswer, 502},
		{"binary", strings.Repeat("\x00\xff", 40) + "\r\n\r\n", reasonChainAnswer, 502},
		{"oversized header", long, reasonChainAnswer, 502},
		{"endless line", strings.Repeat("b", 20<<10), reasonChainAnswer, 502},
		{"half an answer", "HTTP/1.1 200 OK\r\nX-Half", reasonChainTimeout, 504},
		{"silence", "hang", reasonChainTimeout, 504},
	}
}

// TestChainTrouble is case P2: a proxy that refuses or fails is upstream trouble, never policy, and its words stay its own.
func TestChainTrouble(t *testing.T) {
	for _, c := range chainTroubles() {
		for name, secure := range map[string]bool{"http": false, "https": true} {
			t.Run(c.name+" "+name, func(t *testing.T) {
				l, _ := chainedL1(t, secure, c.reply, nil, nil)
				r := l.raw(connectTo(l.target))
				if r.code != c.status || r.phrase != c.reason || r.header.Get("X-Asf-Key") != "" || r.header.Get("Proxy-Authenticate") != "" {
					t.Errorf("%+v", r)
				}
				got := l.last(1)
				if got.Decision != "allow" || got.Reason != c.reason || got.Ms > 5000 {
					t.Errorf("%+v", got)
				}
				if strings.Contains(fmt.Sprint(r, got), "chain-canary") || strings.Contains(fmt.Sprint(r, got), basic[6:]) {
					t.Error("S4: the proxy's echo of the credentials was passed on")
				}
			})
		}
	}
}

// TestChainUnreachable: the proxy itself cannot be reached, looked up or trusted.
func TestChainUnreachable(t *testing.T) {
	closed, full := freePort(t, hostProxy), blackhole(t, hostProxy)
	plain, _ := startProxy(t, "", "HTTP/1.1 200 OK\r\n\r\n", false)
	secure, ca := startProxy(t, "", "", true)
	_, other := startProxy(t, "", "", true)
	zone := brokenZone()
	for name, where := range map[string]string{"proxy.example.com": hostProxy, "local.example.com": hostBarred, "cable.example.com": "198.18.0.1", "meta.example.com": "169.254.169.254"} {
		zone[name] = fixed(answer{v4: []string{where}})
	}
	zone["fail.example.com"] = fixed(answer{rcode: dnsmessage.RCodeServerFailure})
	canary := listenOn(t, hostBarred+":0", nil)
	for name, c := range map[string]struct {
		chain  m
		reason string
		status int
	}{
		"refused":           {m{"url": fmt.Sprintf("http://proxy.example.com:%d", closed)}, reasonChainRefused, 502},
		"timeout":           {m{"url": fmt.Sprintf("http://proxy.example.com:%d", full)}, reasonChainTimeout, 504},
		"unknown name":      {m{"url": "http://nobody.example.com:3128"}, reasonChainDNS, 502},
		"resolver fails":    {m{"url": "http://fail.example.com:3128"}, reasonChainDNS, 502},
		"loopback":          {m{"url": fmt.Sprintf("http://local.example.com:%d", portOf(canary))}, reasonChainAddress, 502},
		"loopback literal":  {m{"url": fmt.Sprintf("http://%s:%d", hostBarred, portOf(canary))}, reasonChainAddress, 502},
		"cable":             {m{"url": "http://cable.example.com:4000"}, reasonChainAddress, 502},
		"metadata":          {m{"url": "http://meta.example.com:80"}, reasonChainAddress, 502},
		"no TLS there":      {m{"url": fmt.Sprintf("https://proxy.example.com:%d", portOf(plain)), "ca_file": ca}, reasonChainTLS, 502},
		"another authority": {m{"url": fmt.Sprintf("https://proxy.example.com:%d", portOf(secure)), "ca_file": other}, reasonChainTLS, 502},
		"another name":      {m{"url": fmt.Sprintf("https://%s", secure.Addr()), "ca_file": ca}, reasonChainTLS, 502},
	} {
		t.Run(name, func(t *testing.T) {
			l := startL1(t, zone, nil, m{"chain": c.chain}, nil)
			r := l.raw(connectTo(l.target))
			got := l.last(1)
			// A plain proxy may wait for a request line that never comes: then time ends it.
			if name == "no TLS there" && r.phrase == reasonChainTimeout {
				return
			}
			if r.code != c.status || r.phrase != c.reason || got.Decision != "allow" || got.Reason != c.reason {
				t.Errorf("%+v %+v", r, got)
			}
			if l.tls.conns.Load()+canary.conns.Load()+secure.conns.Load()*0 != 0 {
				t.Error("something was dialled that must not be")
			}
		})
	}
}

// TestChainEarlyBytes: what the proxy sends with its answer belongs to the tunnel.
func TestChainEarlyBytes(t *testing.T) {
	for name, secure := range map[string]bool{"http": false, "https": true} {
		t.Run(name, func(t *testing.T) {
			l, _ := chainedL1(t, secure, "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nhello from behind", nil, nil)
			c := l.open(fmt.Sprintf("any.example.com:%d", l.port))
			_, _ = io.WriteString(c, "x")
			_ = c.CloseWrite()
			b, _ := io.ReadAll(c)
			if string(b) != "hello from behind" {
				t.Errorf("%q", b)
			}
			if got := l.last(1); got.Reason != "ok" || got.Down != int64(len(b)) {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestChainCut is case P15 through a proxy that speaks TLS and does not read.
func TestChainCut(t *testing.T) {
	l, _ := chainedL1(t, true, "", nil, m{"hello_timeout": "5s"})
	waiting, c := l.open(l.target), l.open(l.target)
	if err := tls.Client(c, l.pool).Handshake(); err != nil {
		t.Fatal(err)
	}
	l.cutBy(func(*l1) error { return caddy.Stop() }, c, waiting)
}

// TestChainClientGone: a client that leaves while the proxy is silent frees its slot at once.
func TestChainClientGone(t *testing.T) {
	l, _ := chainedL1(t, false, "hang", nil, m{"dial_timeout": "20s"})
	c := l.dial()
	_, _ = io.WriteString(c, connectTo(l.target))
	time.Sleep(100 * time.Millisecond)
	_ = c.Close()
	if got := l.last(1); got.Reason != reasonClientGone || got.Ms > 5000 {
		t.Errorf("%+v", got)
	}
}

// TestChainFailsClosed: a chain in doubt serves nothing, and the error holds no byte of the secret.
func TestChainFailsClosed(t *testing.T) {
	_, ca := startProxy(t, "", "", true)
	good, empty := credentialsFile(t, credentials), credentialsFile(t, "")
	for name, chain := range map[string]m{
		"no url":        {},
		"scheme":        {"url": "socks5://proxy.example.com:1080"},
		"no port":       {"url": "http://proxy.example.com"},
		"port 0":        {"url": "http://proxy.example.com:0"},
		"userinfo":      {"url": "http://a:b@proxy.example.com:3128"},
		"path":          {"url": "http://proxy.example.com:3128/"},
		"query":         {"url": "http://proxy.example.com:3128?x"},
		"upper case":    {"url": "http://Proxy.example.com:3128"},
		"no ca":         {"url": "https://proxy.example.com:3128"},
		"ca missing":    {"url": "https://proxy.example.com:3128", "ca_file": ca + "x"},
		"ca empty":      {"url": "https://proxy.example.com:3128", "ca_file": empty},
		"no secret":     {"url": "http://proxy.example.com:3128", "credentials_file": good + "x"},
		"empty secret":  {"url": "http://proxy.example.com:3128", "credentials_file": empty},
		"no colon":      {"url": "http://proxy.example.com:3128", "credentials_file": credentialsFile(t, "chain-canary-7f3a")},
		"line break":    {"url": "http://proxy.example.com:3128", "credentials_file": credentialsFile(t, "a:chain-canary-7f3a\r\nX: y")},
		"long secret":   {"url": "http://proxy.example.com:3128", "credentials_file": credentialsFile(t, "a:"+strings.Repeat("chain-canary-7f3a", 200))},
		"unknown field": {"url": "http://proxy.example.com:3128", "user": "x"},
	} {
		h := m{"handler": "asf_connect", "chain": chain}
		err := loadConfig(caddyConfig(t.TempDir()+"/log", serverConfig("127.0.0.1:0", "L1", h, nil)))
		if err == nil {
			t.Errorf("%s: loaded", name)
			_ = caddy.Stop()
		} else if strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
