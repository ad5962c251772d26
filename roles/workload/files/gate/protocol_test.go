// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

type side struct {
	t       *testing.T
	name    string
	host    *hostSide
	signals chan os.Signal
	ended   chan outcome
}

// serving starts the gate's side on an abstract socket of this process.
func serving(t *testing.T, deadline time.Duration, published bool) *side {
	t.Helper()
	s := &side{t: t, name: "@gate-test-" + newNonce()[:12], signals: make(chan os.Signal, 4), ended: make(chan outcome, 1)}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.name, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	s.host = newHostSide(l, time.Now().Add(deadline))
	if published {
		s.host.publish(&Report{Version: 1, PID: 1, Nonce: "n0nce", PlanDigest: "d"})
	}
	go s.host.accept()
	go func() {
		o := s.host.wait(s.signals)
		s.host.close()
		s.ended <- o
	}()
	return s
}

func (s *side) connect() (*net.UnixConn, *bufio.Reader) {
	s.t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.name, Net: "unix"})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(5 * time.Second))
	return c, bufio.NewReader(c)
}

// talk connects, reads the report, says line and returns what comes back until the end of the connection.
func (s *side) talk(line string) string {
	s.t.Helper()
	c, r := s.connect()
	var report Report
	first, err := r.ReadBytes('\n')
	if err != nil || json.Unmarshal(first, &report) != nil || report.Nonce != "n0nce" {
		s.t.Fatalf("%q %v", first, err)
	}
	c.Write([]byte(line))
	answer, _ := r.ReadString(0)
	return answer
}

func (s *side) outcome() outcome {
	s.t.Helper()
	select {
	case o := <-s.ended:
		return o
	case <-time.After(5 * time.Second):
		s.t.Fatal("the gate did not end")
		return outcome{}
	}
}

func TestGoAndNothingIsLeftToTalkTo(t *testing.T) {
	s := serving(t, time.Minute, true)
	other, r := s.connect()
	r.ReadBytes('\n')
	if got := s.talk("go n0nce\n"); got != "ok\n" {
		t.Fatalf("%q", got)
	}
	if o := s.outcome(); o != (outcome{}) {
		t.Fatalf("%+v", o)
	}
	if _, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: s.name, Net: "unix"}); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("the gate still listens: %v", err)
	}
	if n, err := other.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Error("another connection is still open")
	}
}

func TestStopSaysWhy(t *testing.T) {
	for line, want := range map[string]string{"stop probe failed\n": "probe failed", "stop\n": "no reason given"} {
		s := serving(t, time.Minute, true)
		if got := s.talk(line); got != "ok\n" {
			t.Errorf("%q: %q", line, got)
		}
		if o := s.outcome(); o.stop != want {
			t.Errorf("%q: %+v", line, o)
		}
	}
}

func TestWhatIsNoOrderChangesNothing(t *testing.T) {
	s := serving(t, time.Minute, true)
	for _, line := range []string{"go\n", "go other\n", "go n0nce2\n", "GO n0nce\n", "go  n0nce\n", "\n", "go n0nce\r\n"} {
		if got := s.talk(line); got != "no\n" {
			t.Errorf("%q: %q", line, got)
		}
	}
	if got := s.talk(strings.Repeat("x", 2*maxLine)); got != "" {
		t.Errorf("long line: %q", got)
	}
	c, _ := s.connect()
	c.Close() // before reading the report
	if got := s.talk("go n0nce\n"); got != "ok\n" {
		t.Errorf("go after all that: %q", got)
	}
	s.outcome()
}

func TestADroppedConnectionAndASilentOneDoNotBlockGo(t *testing.T) {
	s := serving(t, time.Minute, true)
	for range maxPeers - 1 {
		s.connect() // says nothing
	}
	c, r := s.connect()
	r.ReadBytes('\n')
	c.Close()
	if got := s.talk("go n0nce\n"); got != "ok\n" {
		t.Errorf("%q", got)
	}
	s.outcome()
}

func TestDeadline(t *testing.T) {
	s := serving(t, 50*time.Millisecond, true)
	s.connect()
	if o := s.outcome(); !errors.Is(o.err, os.ErrDeadlineExceeded) {
		t.Errorf("%+v", o)
	}
}

func TestSignalsEndTheWait(t *testing.T) {
	s := serving(t, time.Minute, true)
	s.signals <- syscall.SIGWINCH
	s.signals <- syscall.SIGTERM
	if o := s.outcome(); o.signal != syscall.SIGTERM {
		t.Errorf("%+v", o)
	}
}

func TestTheHostMayComeBeforeTheReport(t *testing.T) {
	s := serving(t, time.Minute, false)
	c, r := s.connect()
	go func() {
		time.Sleep(30 * time.Millisecond)
		s.host.publish(&Report{Version: 1, Nonce: "late"})
	}()
	if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, "late") {
		t.Fatalf("%q %v", line, err)
	}
	c.Write([]byte("go late\n"))
	if got, _ := r.ReadString(0); got != "ok\n" {
		t.Errorf("%q", got)
	}
	s.outcome()
}

func TestGoThatComesTogetherWithAnotherIsTakenOnce(t *testing.T) {
	s := serving(t, time.Minute, true)
	answers := make(chan string, 4)
	begin := make(chan struct{})
	for range 4 {
		c, r := s.connect()
		r.ReadBytes('\n')
		go func() {
			<-begin
			c.Write([]byte("go n0nce\n"))
			answer, _ := r.ReadString(0)
			answers <- answer
		}()
	}
	close(begin)
	oks := 0
	for range 4 {
		if <-answers == "ok\n" {
			oks++
		}
	}
	if oks != 1 {
		t.Errorf("%d answers of ok", oks)
	}
	s.outcome()
}
