// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"bytes"
	"encoding/json"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// lines is a writer that can be read while it is written to.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *lines) events(t *testing.T) []event {
	t.Helper()
	found := []event{}
	for _, line := range strings.Split(strings.TrimSpace(l.String()), "\n") {
		var e event
		if line != "" && json.Unmarshal([]byte(line), &e) == nil {
			found = append(found, e)
		}
	}
	return found
}

func (l *lines) await(t *testing.T, what string, count int) []event {
	t.Helper()
	for end := time.Now().Add(8 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		found := l.events(t)
		seen := 0
		for _, e := range found {
			if e.Event == what {
				seen++
			}
		}
		if seen >= count {
			return found
		}
	}
	t.Fatalf("no %d events %q: %+v", count, what, l.events(t))
	return nil
}

// supervising runs a shell under a supervisor of this process; the returned function stops it.
func supervising(t *testing.T, script string) (*supervisor, *lines, func() int) {
	t.Helper()
	out := &lines{}
	s := &supervisor{name: "x", argv: []string{"/bin/sh", "-c", script}, out: out, signals: watchSignals()}
	ended := make(chan int, 1)
	go func() { ended <- s.run() }()
	return s, out, func() int {
		s.signals.others <- syscall.SIGTERM
		select {
		case code := <-ended:
			return code
		case <-time.After(10 * time.Second):
			t.Fatal("the supervisor does not stop")
			return -1
		}
	}
}

// B8: whatever ends is started again, later each time, and recorded.
func TestSupervisorRestarts(t *testing.T) {
	_, out, stop := supervising(t, "exit 3")
	found := out.await(t, "start", 3)
	if code := stop(); code != 0 {
		t.Errorf("exit %d", code)
	}
	if found[0].Event != "start" || found[0].PID == 0 || found[1].Event != "exit" || found[1].Status != "code 3" || found[2].Start != 2 {
		t.Errorf("%+v", found)
	}
}

func TestSupervisorStopsWithItsChild(t *testing.T) {
	_, out, stop := supervising(t, "trap 'exit 0' TERM; while :; do sleep 0.01; done")
	found := out.await(t, "start", 1)
	if code := stop(); code != 0 {
		t.Errorf("exit %d", code)
	}
	if err := syscall.Kill(found[0].PID, 0); err != syscall.ESRCH {
		t.Errorf("the child lives: %v", err)
	}
	if out.await(t, "stop", 1); len(out.events(t)) != 3 {
		t.Errorf("%+v", out.events(t))
	}
}

func TestSupervisorKillsAStubbornChild(t *testing.T) {
	defer func(old time.Duration) { killAfter = old }(killAfter)
	killAfter = 100 * time.Millisecond
	_, out, stop := supervising(t, "trap '' TERM; while :; do sleep 0.01; done")
	out.await(t, "start", 1)
	time.Sleep(100 * time.Millisecond) // until the shell has set its trap
	if code := stop(); code != 0 {
		t.Errorf("exit %d", code)
	}
	if found := out.events(t); found[len(found)-1].Status != "signal 9" {
		t.Errorf("%+v", found)
	}
}

func TestSupervisorForwardsHangup(t *testing.T) {
	s, out, stop := supervising(t, "trap 'exit 8' HUP; while :; do sleep 0.01; done")
	out.await(t, "start", 1)
	time.Sleep(100 * time.Millisecond)
	s.signals.others <- syscall.SIGHUP
	if found := out.await(t, "exit", 1); found[1].Status != "code 8" {
		t.Errorf("%+v", found)
	}
	stop()
}

func TestSupervisorOfAMissingProgram(t *testing.T) {
	out := &lines{}
	s := &supervisor{name: "x", argv: []string{"/no/such/program"}, out: out, signals: watchSignals()}
	ended := make(chan int, 1)
	go func() { ended <- s.run() }()
	if found := out.await(t, "exit", 2); !strings.Contains(found[0].Status, "/no/such/program") {
		t.Errorf("%+v", found)
	}
	s.signals.others <- syscall.SIGINT
	if code := <-ended; code != 0 {
		t.Errorf("exit %d", code)
	}
}
