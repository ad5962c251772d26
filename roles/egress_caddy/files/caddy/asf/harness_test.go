// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"bufio"
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/caddyserver/caddy/v2"
	_ "github.com/caddyserver/caddy/v2/modules/logging"
	"golang.org/x/net/dns/dnsmessage"
)

// The harness runs the real thing: a whole Caddy, loaded from JSON as the product renders it, on loopback, with a
// resolver of the test's own that records every query, and listeners that record every connection.

// proxyCanary is a listener that every proxy variable of this process names (case P14).
var proxyCanary *sink

func TestMain(m *testing.M) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	proxyCanary = newSink(l, nil)
	for _, v := range []string{"http_proxy", "https_proxy", "all_proxy"} {
		_ = os.Setenv(v, "http://"+l.Addr().String())
		_ = os.Setenv(strings.ToUpper(v), "http://"+l.Addr().String())
	}
	dir, err := os.MkdirTemp("", "asf-caddy-test")
	if err != nil {
		panic(err)
	}
	_ = os.Setenv("HOME", dir)
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// --- addresses ---

const (
	hostOK     = "127.0.0.10" // declared names live here
	hostBarred = "127.0.0.66" // a canary: nothing may ever connect
)

// sink is a TCP server that counts connections and remembers the bytes it got.
type sink struct {
	net.Listener
	conns atomic.Int64
	mu    sync.Mutex
	got   bytes.Buffer
}

// newSink serves each connection by handle, or reads it to its end.
func newSink(l net.Listener, handle func(net.Conn, *sink)) *sink {
	s := &sink{Listener: l}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s.conns.Add(1)
			go func() {
				defer func() { _ = c.Close() }()
				if handle != nil {
					handle(c, s)
					return
				}
				_, _ = io.Copy(s, c)
			}()
		}
	}()
	return s
}

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got.Write(p)
}

func (s *sink) bytes() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got.String()
}

func listenOn(t *testing.T, addr string, handle func(net.Conn, *sink)) *sink {
	t.Helper()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return newSink(l, handle)
}

func portOf(l net.Listener) uint16 {
	a, _ := l.Addr().(*net.TCPAddr)
	return uint16(a.Port)
}

func freePort(t *testing.T, host string) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return portOf(l)
}

// --- DNS ---

type answer struct {
	v4, v6 []string
	cname  string
	rcode  dnsmessage.RCode
	silent bool
}

type fakeDNS struct {
	conn net.PacketConn
	mu   sync.Mutex
	seen []string
	zone map[string]func(n int) answer // n counts the queries for this name, from 0
	nth  map[string]int
}

func startDNS(t *testing.T, zone map[string]func(int) answer) *fakeDNS {
	t.Helper()
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &fakeDNS{conn: c, zone: zone, nth: map[string]int{}}
	t.Cleanup(func() { _ = c.Close() })
	go d.serve()
	return d
}

func fixed(a answer) func(int) answer { return func(int) answer { return a } }

func (d *fakeDNS) addr() string { return d.conn.LocalAddr().String() }

func (d *fakeDNS) queries() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]string(nil), d.seen...)
}

func (d *fakeDNS) serve() {
	buf := make([]byte, 1500)
	for {
		n, from, err := d.conn.ReadFrom(buf)
		if err != nil {
			return
		}
		var m dnsmessage.Message
		if m.Unpack(buf[:n]) != nil || len(m.Questions) != 1 {
			continue
		}
		if reply := d.reply(&m); reply != nil {
			_, _ = d.conn.WriteTo(reply, from)
		}
	}
}

func (d *fakeDNS) reply(m *dnsmessage.Message) []byte {
	q := m.Questions[0]
	name := strings.TrimSuffix(q.Name.String(), ".")
	d.mu.Lock()
	d.seen = append(d.seen, name+" "+q.Type.String())
	a := answer{rcode: dnsmessage.RCodeNameError}
	if f := d.zone[name]; f != nil {
		a = f(d.nth[name])
		d.nth[name]++
	}
	d.mu.Unlock()
	if a.silent {
		return nil
	}
	out := dnsmessage.Message{Header: dnsmessage.Header{ID: m.ID, Response: true, RCode: a.rcode, RecursionAvailable: true}, Questions: m.Questions}
	owner := q.Name
	if a.cname != "" {
		owner = dnsmessage.MustNewName(a.cname + ".")
		out.Answers = append(out.Answers, record(q.Name, &dnsmessage.CNAMEResource{CNAME: owner}))
	}
	if q.Type == dnsmessage.TypeA {
		for _, s := range a.v4 {
			out.Answers = append(out.Answers, record(owner, &dnsmessage.AResource{A: [4]byte(net.ParseIP(s).To4())}))
		}
	}
	if q.Type == dnsmessage.TypeAAAA {
		for _, s := range a.v6 {
			out.Answers = append(out.Answers, record(owner, &dnsmessage.AAAAResource{AAAA: [16]byte(net.ParseIP(s).To16())}))
		}
	}
	b, err := out.Pack()
	if err != nil {
		return nil
	}
	return b
}

func record(name dnsmessage.Name, body dnsmessage.ResourceBody) dnsmessage.Resource {
	return dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: name, Class: dnsmessage.ClassINET, TTL: 1}, Body: body}
}

// --- Caddy ---

type m = map[string]any

// proxy is a running Caddy with one server and its log.
type proxy struct {
	t    *testing.T
	addr string
	log  string
}

func serverConfig(addr, listener string, handler m, guard m) m {
	g := m{"wrapper": "asf_guard", "session": "claude.main", "listener": listener}
	for k, v := range guard {
		g[k] = v
	}
	return m{
		"listen": []string{addr}, "protocols": []string{"h1"}, "automatic_https": m{"disable": true},
		"max_header_bytes": 16384, "read_header_timeout": "1s",
		"listener_wrappers": []m{g},
		"routes":            []m{{"handle": []m{handler}}},
		"errors": m{"routes": []m{{"handle": []m{
			{"handler": "asf_refuse", "session": "claude.main", "listener": listener, "protocol": handler["protocol"]},
		}}}},
	}
}

func caddyConfig(log string, server m) m {
	if r, _ := server["errors"].(m); r != nil {
		if h := r["routes"].([]m)[0]["handle"].([]m)[0]; h["protocol"] == nil {
			delete(h, "protocol")
		}
	}
	return m{
		"admin": m{"disabled": true, "config": m{"persist": false}},
		"logging": m{"logs": m{"default": m{
			"writer":  m{"output": "file", "filename": log, "roll": false},
			"encoder": m{"format": "json"}, "level": "INFO",
		}}},
		"apps": m{"http": m{"grace_period": "1s", "servers": m{"s": server}}},
	}
}

func loadConfig(config m) error {
	b, err := json.Marshal(config)
	if err != nil {
		return err
	}
	return caddy.Load(b, true)
}

func startCaddy(t *testing.T, listener string, handler, guard m) *proxy {
	t.Helper()
	return startCaddyWith(t, listener, handler, guard, nil)
}

// startCaddyWith also runs an app beside the HTTP server.
func startCaddyWith(t *testing.T, listener string, handler, guard, transparent m) *proxy {
	t.Helper()
	decided.flush()
	decided.reset(nil)
	p := &proxy{t: t, log: filepath.Join(t.TempDir(), "log")}
	p.addr = fmt.Sprintf("127.0.0.1:%d", freePort(t, "127.0.0.1"))
	t.Cleanup(func() { _ = caddy.Stop() })
	config := caddyConfig(p.log, serverConfig(p.addr, listener, handler, guard))
	if transparent != nil {
		config["apps"].(m)["asf_transparent"] = transparent
	}
	if err := loadConfig(config); err != nil {
		t.Fatal(err)
	}
	return p
}

// line is one decision line.
type line struct {
	Logger, Session, Listener, Method, Host, Port, Decision, Reason, Detail, Key, Addr, Target string
	Status                                                                                     int
	Up, Down, Ms, Count                                                                        int64
	Others                                                                                     bool
}

func (p *proxy) lines() []line {
	p.t.Helper()
	raw, err := os.ReadFile(p.log)
	if err != nil {
		return nil
	}
	var out []line
	for _, s := range strings.Split(strings.TrimSpace(string(raw)), "\n") {
		var probe struct{ Msg string }
		if json.Unmarshal([]byte(s), &probe) != nil || probe.Msg != "decision" {
			continue
		}
		var l line
		if err := json.Unmarshal([]byte(s), &l); err != nil {
			p.t.Fatalf("bad log line %s: %v", s, err)
		}
		out = append(out, l)
	}
	return out
}

// wait returns the lines as soon as there are n of them, and fails when there are more or too few.
func (p *proxy) wait(n int) []line {
	p.t.Helper()
	deadline := time.Now().Add(5 * time.Second)
	for {
		ls := p.lines()
		if len(ls) >= n || time.Now().After(deadline) {
			if len(ls) != n {
				p.t.Fatalf("%d decision lines, want %d: %+v", len(ls), n, ls)
			}
			return ls
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func (p *proxy) last(n int) line {
	p.t.Helper()
	return p.wait(n)[n-1]
}

func (p *proxy) dial() *net.TCPConn {
	p.t.Helper()
	c, err := net.DialTimeout("tcp", p.addr, 2*time.Second)
	for range 5 { // a reload resets what waits at the old listener
		if !errors.Is(err, syscall.ECONNRESET) {
			break
		}
		c, err = net.DialTimeout("tcp", p.addr, 2*time.Second)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	return c.(*net.TCPConn)
}

// reply is a parsed response and everything that came behind it.
type reply struct {
	code   int
	phrase string
	header http.Header
	body   string
	rest   string
}

// raw sends bytes and reads to the end of the connection.
func (p *proxy) raw(request string) reply {
	p.t.Helper()
	c := p.dial()
	if _, err := io.WriteString(c, request); err != nil {
		p.t.Fatal(err)
	}
	r := readReply(p.t, c)
	_ = c.Close()
	return r
}

func readReply(t *testing.T, c io.Reader) reply {
	t.Helper()
	br := bufio.NewReader(c)
	resp, err := http.ReadResponse(br, &http.Request{Method: "GET"})
	if err != nil {
		return reply{}
	}
	body, _ := io.ReadAll(resp.Body)
	rest, _ := io.ReadAll(br)
	return reply{resp.StatusCode, strings.TrimPrefix(resp.Status, fmt.Sprintf("%d ", resp.StatusCode)), resp.Header, string(body), string(rest)}
}

// open sends a CONNECT and returns the connection behind the 200, or fails.
func (p *proxy) open(target string) *net.TCPConn {
	p.t.Helper()
	c := p.dial()
	_, _ = fmt.Fprintf(c, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", target, target)
	if got := readHead(p.t, c); got != "HTTP/1.1 200 Connection established\r\n\r\n" {
		p.t.Fatalf("CONNECT %s: %q", target, got)
	}
	return c
}

// readHead reads byte by byte to the end of a response head, so nothing behind it is taken away.
func readHead(t *testing.T, c io.Reader) string {
	t.Helper()
	var b strings.Builder
	one := make([]byte, 1)
	for !strings.HasSuffix(b.String(), "\r\n\r\n") {
		if _, err := io.ReadFull(c, one); err != nil {
			return b.String() + "!" + err.Error()
		}
		b.Write(one)
	}
	return b.String()
}

// --- TLS ---

func selfSigned(t *testing.T, names ...string) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: names, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(leaf)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// echoTLS is a TLS server that sends back what it gets.
func echoTLS(t *testing.T, host string, names ...string) (*sink, *x509.CertPool) {
	t.Helper()
	cert, pool := selfSigned(t, names...)
	s := listenOn(t, host+":0", func(c net.Conn, s *sink) {
		tc := tls.Server(c, &tls.Config{Certificates: []tls.Certificate{cert}})
		_, _ = io.Copy(tc, io.TeeReader(tc, s))
	})
	return s, pool
}
