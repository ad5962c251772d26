// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// revised loads another list for the same listener.
func (l *l1) revised(policy []m, more m) {
	l.t.Helper()
	h := m{"handler": "asf_connect", "session": "claude.main", "listener": "L1", "resolver": l.dns.addr(), "policy": policy, "policy_id": "second",
		"dns_timeout": "400ms", "dial_timeout": "600ms", "hello_timeout": "400ms"}
	for k, v := range more {
		h[k] = v
	}
	if err := loadConfig(caddyConfig(l.log, serverConfig(l.addr, "L1", h, nil))); err != nil {
		l.t.Fatal(err)
	}
}

// asked is what CONNECT gets from the newest configuration; a reload resets what waits at the old listener.
func (l *l1) asked(target string) reply {
	r := l.raw(connectTo(target))
	for i := 0; i < 20 && r.code == 0; i++ {
		r = l.raw(connectTo(target))
	}
	return r
}

func alive(t *testing.T, c net.Conn) bool {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	return timedOut(err)
}

// TestATunnelOutlivesAListThatAllowsIt (P15): what the new list allows goes on, what it does not is cut and says so.
func TestATunnelOutlivesAListThatAllowsIt(t *testing.T) {
	l := startL1(t, nil, nil, nil, nil)
	c := l.open(l.target)
	if err := tls.Client(c, l.pool).Handshake(); err != nil {
		t.Fatal(err)
	}
	l.revised([]m{declared(0, "docs.example.com", l.port, nil)}, nil)
	if !alive(t, c) {
		t.Fatal("the tunnel was cut by a list that allows it")
	}
	if r := l.asked("undeclared.test:443"); r.header.Get("X-Asf-Policy") != "second" {
		t.Errorf("%+v", r)
	}
	l.revised(nil, nil)
	if alive(t, c) {
		t.Error("the tunnel outlives its grant")
	}
	for _, got := range l.wait(2) {
		if got.Reason == reasonClosed && (got.Detail != "cut: the session's new policy does not allow it" || got.Decision != "allow") {
			t.Errorf("%+v", got)
		}
	}
}

// TestAnAddressThatIsNotPrivateAnyMoreIsCut: the list is the whole grant, not the name alone.
func TestAnAddressThatIsNotPrivateAnyMoreIsCut(t *testing.T) {
	l := startL1(t, nil, nil, nil, nil)
	c := l.open(l.target)
	if err := tls.Client(c, l.pool).Handshake(); err != nil {
		t.Fatal(err)
	}
	l.revised([]m{declared(0, "docs.example.com", l.port, m{"private": []string{"10.0.0.0/8"}})}, nil)
	if alive(t, c) {
		t.Error("the tunnel outlives its grant")
	}
}

// TestARefusedListChangesNothing: a configuration in doubt leaves tunnels and policy as they are.
func TestARefusedListChangesNothing(t *testing.T) {
	l := startL1(t, nil, nil, nil, nil)
	c := l.open(l.target)
	if err := tls.Client(c, l.pool).Handshake(); err != nil {
		t.Fatal(err)
	}
	bad := m{"handler": "asf_connect", "session": "claude.main", "listener": "L1", "resolver": l.dns.addr()}
	other := m{"handler": "asf_connect", "session": "claude.main", "listener": "L9", "policy": []m{{"name": "*"}}}
	config := caddyConfig(l.log, serverConfig(l.addr, "L1", bad, nil))
	config["apps"].(m)["http"].(m)["servers"].(m)["second"] = serverConfig("127.0.0.1:0", "L9", other, nil)
	if err := loadConfig(config); err == nil {
		t.Fatal("it was loaded")
	}
	if !alive(t, c) {
		t.Error("the tunnel was cut")
	}
	if c2 := l.open(l.target); tls.Client(c2, l.pool).Handshake() != nil {
		t.Error("the policy does not hold any more")
	}
}

// TestSlotsAreCountedOverAReload: a new configuration is no new allowance.
func TestSlotsAreCountedOverAReload(t *testing.T) {
	l := startL1(t, nil, nil, m{"max_tunnels": 1}, nil)
	c := l.open(l.target)
	if err := tls.Client(c, l.pool).Handshake(); err != nil {
		t.Fatal(err)
	}
	l.revised([]m{declared(0, "docs.example.com", l.port, nil)}, m{"max_tunnels": 1})
	if r := l.asked(l.target); r.code != 503 || r.phrase != reasonLimitTunnels {
		t.Errorf("%+v", r)
	}
}

// TestReloadUnderLoad: tunnels that come and go while the list changes all end in one line each, and none is forgotten.
func TestReloadUnderLoad(t *testing.T) {
	l := startL1(t, nil, nil, nil, nil)
	var wait sync.WaitGroup
	for range 4 {
		wait.Go(func() {
			for range 15 {
				c, err := net.Dial("tcp", l.addr)
				if err != nil {
					continue
				}
				_ = c.SetDeadline(time.Now().Add(5 * time.Second))
				_, _ = c.Write([]byte(connectTo(l.target)))
				_, _ = c.Read(make([]byte, 1024))
				_ = c.Close()
			}
		})
	}
	for n := range 6 {
		if n%2 == 0 {
			l.revised(nil, nil)
		} else {
			l.revised([]m{declared(0, "docs.example.com", l.port, nil)}, nil)
		}
	}
	wait.Wait()
	listenersMu.Lock()
	shared := listeners["claude.main\nL1"]
	listenersMu.Unlock()
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		shared.mu.Lock()
		open, handlers := len(shared.open), len(shared.handlers)
		shared.mu.Unlock()
		if open == 0 && handlers == 1 && len(shared.slots) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d tunnels, %d handlers, %d slots are left", open, handlers, len(shared.slots))
		}
	}
}

// TestWhoWasSlowToAskIsJudgedByTheNewList: nothing is looked up or dialled for a name that is withdrawn.
func TestWhoWasSlowToAskIsJudgedByTheNewList(t *testing.T) {
	l := startL1(t, nil, nil, nil, nil)
	listenersMu.Lock()
	old := listeners["claude.main\nL1"].handlers[0]
	listenersMu.Unlock()
	if old.current() != old {
		t.Fatal("another list decides")
	}
	l.revised(nil, nil)
	if no := old.pass(t.Context(), authority{name: "docs.example.com", port: l.port}, nil, &decision{}); no == nil || no.reason != reasonDeniedName {
		t.Errorf("%+v", no)
	}
	if old.current().PolicyID != "second" {
		t.Error("the old list is named")
	}
}

// TestABodyThatComesAfterTheChangeIsNotJudgedByTheOldPolicy: the front of before answers what it had let in, no more.
func TestABodyThatComesAfterTheChangeIsNotJudgedByTheOldPolicy(t *testing.T) {
	f := startFront(t, protocolAnthropic, m{"models": []string{"claude-x"}})
	body := `{"model":"claude-x","max_tokens":1,"messages":[{"role":"user","content":"hi"}]}`
	if r := f.ask("POST /v1/messages", body); r.code != 200 || len(f.got()) != 1 {
		t.Fatalf("%+v", r)
	}
	c := f.dial()
	_, _ = fmt.Fprintf(c, "POST /v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\n"+
		"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n", testToken, len(body))
	_ = c.SetReadDeadline(time.Now().Add(60 * time.Second))
	leave := make([]byte, len("HTTP/1.1 100 Continue\r\n\r\n"))
	if _, err := io.ReadFull(c, leave); err != nil {
		t.Fatal(err)
	}
	f.handler["models"] = []string{"other"}
	if err := loadConfig(caddyConfig(f.log, serverConfig(f.addr, "L2", f.handler, nil))); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(c, body)
	f.refusedAs("late", readReply(t, c), 503, reasonClosed)
}
