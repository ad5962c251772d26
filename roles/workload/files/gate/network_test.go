// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"io"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"
)

// answering serves one fixed answer per connection; the answer may depend on the request's head.
func answering(t *testing.T, answer func(head string) string) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				head, r := "", bufio.NewReader(c)
				for !strings.HasSuffix(head, "\r\n\r\n") {
					line, err := r.ReadString('\n')
					if err != nil {
						return
					}
					head += line
				}
				io.WriteString(c, answer(head))
			}()
		}
	}()
	return l.Addr().String()
}

// refusing is an address of loopback where nothing listens.
func refusing(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestProxyProbes(t *testing.T) {
	head := func(status, reason string) string {
		return "HTTP/1.1 " + status + " x\r\nX-Asf-Proxy: " + reason + "\r\n\r\n"
	}
	for _, c := range []struct{ answer, decision, reach, deny string }{
		{"HTTP/1.1 200 OK\r\n\r\n", pass, pass, fail},
		{head("200", "ok"), pass, pass, fail},
		{head("502", "upstream-refused"), pass, warn, fail},
		{head("403", "denied-name"), fail, inconclusive, pass},
		{head("403", "denied-port"), fail, inconclusive, inconclusive},
		{"HTTP/1.1 403 Forbidden\r\n\r\n", inconclusive, inconclusive, inconclusive},
		{"HTTP/1.1 502 Bad\r\n\r\n", inconclusive, inconclusive, inconclusive},
		{head("500", "internal"), inconclusive, inconclusive, inconclusive},
		{"", inconclusive, inconclusive, inconclusive},
		{"220 smtp\r\n", inconclusive, inconclusive, inconclusive},
	} {
		seen := ""
		addr := answering(t, func(h string) string { seen = h; return c.answer })
		in := &inside{plan: &Plan{Probes: Probes{Allow: &ProxyTarget{addr, "docs.example.com:443"},
			Deny: &ProxyTarget{addr, "asf-denied.invalid:443"}}}}
		allow, deny := probeAllow(context.Background(), in), probeDeny(context.Background(), in)
		if allow[0].Verdict != c.decision || allow[1].Verdict != c.reach || deny.Verdict != c.deny {
			t.Errorf("%q: %+v %+v", c.answer, allow, deny)
		}
		if !strings.HasPrefix(seen, "CONNECT asf-denied.invalid:443 HTTP/1.1\r\nHost: asf-denied.invalid:443\r\n") {
			t.Errorf("%q", seen)
		}
	}
}

// helloAnswering is a server that reads one ClientHello and answers with bytes; it remembers the server name.
func helloAnswering(t *testing.T, answer string, seen *string) string {
	t.Helper()
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			tls.Server(muted{c}, &tls.Config{GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
				*seen = h.ServerName
				return nil, io.EOF
			}}).Handshake()
			io.WriteString(c, answer)
			c.Close()
		}
	}()
	return l.Addr().String()
}

type muted struct{ net.Conn }

func (muted) Write(p []byte) (int, error) { return len(p), nil }

func TestTLSProbes(t *testing.T) {
	for _, c := range []struct{ answer, got, allow, deny string }{
		{"\x16\x03\x03\x00\x50\x02\x00", "server-hello", pass, fail},
		{"\x15\x03\x03\x00\x02\x02\x31", "alert:49", fail, pass},
		{"\x15\x03\x03\x00\x02\x02\x50", "alert:80", warn, fail},
		{"\x15\x03\x03\x00\x02\x02\x70", "alert:112", inconclusive, inconclusive},
		{"\x15\x03\x03\x00\x02\x02\x32", "alert:50", inconclusive, inconclusive},
		{"HTTP/1.1 400 x", "other:72", inconclusive, inconclusive},
		{"", "closed", warn, inconclusive},
	} {
		var name string
		addr := helloAnswering(t, c.answer, &name)
		in := &inside{plan: &Plan{Probes: Probes{TLS: &TLSTarget{addr, "docs.example.com", "asf-denied.invalid"}}}}
		deny := probeTLSDeny(context.Background(), in)
		if deny.Verdict != c.deny || deny.Got != c.got || name != "asf-denied.invalid" {
			t.Errorf("%+v %q", deny, name)
		}
		allow := probeTLSAllow(context.Background(), in)
		if allow.Verdict != c.allow || allow.Got != c.got || name != "docs.example.com" {
			t.Errorf("%+v %q", allow, name)
		}
	}
}

// A real server of either version answers the hello that is built here with its own.
func TestServersAnswerTheHello(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1)}, &x509.Certificate{}, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		l, err := tls.Listen("tcp4", "127.0.0.1:0", &tls.Config{MinVersion: version, MaxVersion: version,
			Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				c.(*tls.Conn).Handshake()
				c.Close()
			}
		}()
		if got := helloWord(context.Background(), l.Addr().String(), "a.example.com", time.Second); got != "server-hello" {
			t.Errorf("%x: %s", version, got)
		}
		l.Close()
	}
}

// L6: a proxy that is not there denies nothing.
func TestADeadProxyIsInconclusive(t *testing.T) {
	dead := refusing(t)
	in := &inside{token: "tok", plan: &Plan{Probes: Probes{Allow: &ProxyTarget{dead, "a:443"}, Deny: &ProxyTarget{dead, "a:443"},
		TLS: &TLSTarget{dead, "a", "b"}, Front: &FrontTarget{dead, "/asf/control"}, Reach: []string{dead}}}}
	for _, c := range append(probeAllow(context.Background(), in), probeDeny(context.Background(), in),
		probeTLSAllow(context.Background(), in), probeTLSDeny(context.Background(), in),
		probePolicy(context.Background(), in), probeFront(context.Background(), in), probeFrontRefuses(context.Background(), in), probeReach(context.Background(), in)) {
		if c.Verdict != inconclusive || !strings.Contains(c.Got, "ECONNREFUSED") {
			t.Errorf("%+v", c)
		}
	}
}

func TestFrontProbes(t *testing.T) {
	ok, no := "HTTP/1.1 204 x\r\nX-Asf-Front: ok\r\n\r\n", "HTTP/1.1 401 x\r\n\r\n"
	for _, c := range []struct{ token, none, wrong, control, refuses string }{
		{ok, no, no, pass, pass},
		{no, no, no, fail, pass},
		{ok, ok, no, pass, fail},
		{ok, no, ok, pass, fail},
		{"HTTP/1.1 200 x\r\n\r\n", no, no, inconclusive, pass},
		{"HTTP/1.1 503 x\r\n\r\n", "HTTP/1.1 503 x\r\n\r\n", no, inconclusive, inconclusive},
	} {
		addr := answering(t, func(head string) string {
			switch {
			case !strings.HasPrefix(head, "GET /asf/control HTTP/1.1\r\n"):
				return "HTTP/1.1 404 x\r\n\r\n"
			case strings.Contains(head, "Authorization: Bearer tok\r\n"):
				return c.token
			case strings.Contains(head, "Authorization:"):
				return c.wrong
			}
			return c.none
		})
		in := &inside{token: "tok", plan: &Plan{Probes: Probes{Front: &FrontTarget{addr, "/asf/control"}}}}
		control, refuses := probeFront(context.Background(), in), probeFrontRefuses(context.Background(), in)
		if control.Verdict != c.control || refuses.Verdict != c.refuses {
			t.Errorf("%+v: %+v %+v", c, control, refuses)
		}
		if strings.Contains(control.Got+refuses.Got, "tok") {
			t.Error("the token is in the report")
		}
	}
}

// TestPolicyProbe: whoever refuses names the policy by which it decides, or the front's control does.
func TestPolicyProbe(t *testing.T) {
	for head, want := range map[string]string{
		"X-Asf-Policy: 1234": pass, "X-Asf-Policy: 1235": fail, "X-Asf-Policy: 1234 x": fail, "X-Asf-Proxy: denied-name": inconclusive,
	} {
		addr := answering(t, func(string) string { return "HTTP/1.1 403 x\r\n" + head + "\r\n\r\n" })
		byProxy := Probes{Policy: "1234", Deny: &ProxyTarget{addr, "a:443"}}
		byFront := Probes{Policy: "1234", Front: &FrontTarget{addr, "/asf/control"}}
		for _, probes := range []Probes{byProxy, byFront} {
			if c := probePolicy(context.Background(), &inside{plan: &Plan{Probes: probes}}); c.Verdict != want {
				t.Errorf("%s: %+v", head, c)
			}
		}
	}
}

func TestReachAndClosed(t *testing.T) {
	open, shut := answering(t, func(string) string { return "" }), refusing(t)
	for _, c := range []struct {
		addr, reach, closed string
	}{{open, pass, fail}, {shut, inconclusive, pass}} {
		in := &inside{plan: &Plan{Probes: Probes{Reach: []string{c.addr}, Closed: []string{c.addr}}}}
		reach, closed := probeReach(context.Background(), in), probeClosed(context.Background(), in)
		if reach.Verdict != c.reach || closed.Verdict != c.closed {
			t.Errorf("%+v %+v", reach, closed)
		}
	}
}

func TestUnreachCountsOnlyTheRoutingTablesAnswer(t *testing.T) {
	for _, c := range []struct{ addr, kind, word, want string }{
		{"198.51.100.1:443", "tcp", "ENETUNREACH", pass},
		{"198.51.100.1:443", "tcp", "ECONNREFUSED", fail},
		{"198.51.100.1:443", "tcp", "timeout", fail},
		{"198.51.100.1:443", "tcp", "EHOSTUNREACH", fail},
		{"198.51.100.1:443", "udp", "connected", fail},
		{"198.51.100.1:443", "tcp", "EADDRNOTAVAIL", fail},
		{"[2001:db8::1]:443", "tcp", "EADDRNOTAVAIL", pass},
		{"198.51.100.1:443", "icmp", "socket-EACCES", pass},
		{"198.51.100.1:443", "icmp", "socket-EMFILE", inconclusive},
		{"198.51.100.1:443", "udp", "EMFILE", inconclusive},
	} {
		if got := unreachVerdict(c.addr, c.kind, c.word); got != c.want {
			t.Errorf("%+v: %s", c, got)
		}
	}
	in := &inside{plan: &Plan{Probes: Probes{Unreach: []string{"127.0.0.1:9"}}}}
	if c := probeUnreach(context.Background(), in); c.Verdict != fail {
		t.Errorf("loopback is reachable: %+v", c)
	}
}

// N1: any answer at all is a resolver; so is anything that accepts on TCP.
func TestDNS(t *testing.T) {
	silent, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	echo, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go func() {
		b := make([]byte, 512)
		for {
			n, from, err := echo.ReadFrom(b)
			if err != nil {
				return
			}
			echo.WriteTo(b[:n], from)
		}
	}()
	tcp := answering(t, func(string) string { return "" })
	for _, c := range []struct{ network, addr, want string }{
		{"udp", silent.LocalAddr().String(), "silent"},
		{"udp", echo.LocalAddr().String(), "answered"},
		{"udp", refusing(t), "ECONNREFUSED"},
		{"tcp", tcp, "connected"},
		{"tcp", refusing(t), "ECONNREFUSED"},
	} {
		begin := time.Now()
		if got := dnsWord(context.Background(), c.network, c.addr); got != c.want || time.Since(begin) > time.Second {
			t.Errorf("%+v: %s after %v", c, got, time.Since(begin))
		}
	}
}

func TestProbesAreBoundedAndMayBreak(t *testing.T) {
	hang := probe{[]string{"caps", "fds"}, 30 * time.Millisecond, func(context.Context, *inside) []Check { select {} }}
	broken := one("environ", func(context.Context, *inside) Check { panic("no\nfile") })
	good := one("pid1", func(context.Context, *inside) Check { return Check{ID: "pid1", Got: "1", Verdict: pass} })
	checks := inspect(&inside{}, []probe{hang, broken, good})
	if len(checks) != 4 || checks[0].ID != "caps" || checks[1].Verdict != inconclusive || checks[2].Verdict != inconclusive ||
		checks[2].Reason != "probe broke: no?file" || checks[3].Expect == "" {
		t.Errorf("%+v", checks)
	}
}

func TestEveryCheckIsDefinedAndMade(t *testing.T) {
	in := &inside{role: "run", plan: &Plan{Probes: Probes{Unreach: []string{"x"}, Reach: []string{"x"}, Closed: []string{"x"},
		DNS: []string{"x"}, Allow: &ProxyTarget{}, Deny: &ProxyTarget{}, TLS: &TLSTarget{Allow: "x"}, Front: &FrontTarget{}, Policy: "x",

		Routed: &Routed{UDP: []string{"x"}, ICMP: []string{"x"}}}}}
	made := map[string]bool{}
	for _, p := range probesFor(in) {
		for _, id := range p.ids {
			if definitions[id].invariant == 0 || made[id] {
				t.Errorf("%s: not defined, or made twice", id)
			}
			made[id] = true
		}
	}
	for id := range definitions {
		if !made[id] {
			t.Errorf("%s is defined and never made", id)
		}
	}
}
