// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// child starts a shell in a process group of its own.
func child(t *testing.T, script string) int {
	t.Helper()
	return childIn(t, 0, script)
}

// childIn starts a shell in this process group.
func childIn(t *testing.T, group int, script string) int {
	t.Helper()
	pid, err := syscall.ForkExec("/bin/sh", []string{"sh", "-c", script}, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setpgid: true, Pgid: group}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { endBoth(pid, syscall.SIGKILL) })
	return pid
}

func TestAWorkloadThatIgnoresTermIsKilledAfterTheGrace(t *testing.T) {
	defer func(old time.Duration) { timeGrace = old }(timeGrace)
	timeGrace = 100 * time.Millisecond
	signals := watchSignals()
	limit := &timeLimit{seconds: 1, next: time.After(200 * time.Millisecond)}
	begin := time.Now()
	code := attend(child(t, "trap '' TERM; while :; do sleep 0.02; done"), false, limit, signals)
	if took := time.Since(begin); code != exitTime || took < 300*time.Millisecond || took > 5*time.Second {
		t.Errorf("exit %d after %v", code, took)
	}
}

// Leaving the process group must not evade limits.time.
func TestAWorkloadInAnotherProcessGroupIsEnded(t *testing.T) {
	defer func(old time.Duration) { timeGrace = old }(timeGrace)
	for name, c := range map[string]struct {
		script string
		grace  time.Duration
	}{
		"by TERM":         {"while :; do sleep 0.02; done", time.Minute},
		"after the grace": {"trap '' TERM; while :; do sleep 0.02; done", 100 * time.Millisecond},
	} {
		timeGrace = c.grace
		group := child(t, "trap '' TERM; while :; do sleep 0.02; done")
		if code := attendFor(t, childIn(t, group, c.script), 5*time.Second); code != exitTime {
			t.Errorf("%s: exit %d", name, code)
		}
	}
}

// attendFor attends with a time limit of 200 ms; -1 when that has not ended within the time given.
func attendFor(t *testing.T, pid int, most time.Duration) int {
	t.Helper()
	done := make(chan int, 1)
	limit := &timeLimit{seconds: 1, next: time.After(200 * time.Millisecond)}
	go func() { done <- attend(pid, false, limit, watchSignals()) }()
	select {
	case code := <-done:
		return code
	case <-time.After(most):
		endBoth(pid, syscall.SIGKILL)
		return -1
	}
}

func TestAWorkloadThatStopsStandardErrorIsEnded(t *testing.T) {
	defer func(old time.Duration, file *os.File) { timeGrace, os.Stderr = old, file }(timeGrace, os.Stderr)
	timeGrace = 100 * time.Millisecond
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	defer writer.Close()
	writer.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
	writer.Write(make([]byte, 1<<20)) // fills the pipe, then fails
	writer.SetWriteDeadline(time.Time{})
	os.Stderr = writer
	if code := attendFor(t, child(t, "sleep 60"), 5*time.Second); code != exitTime {
		t.Errorf("exit %d", code)
	}
}

func TestWithoutALimitThereIsNoTimer(t *testing.T) {
	if l := newTimeLimit(0); l.next != nil || l.over {
		t.Errorf("%+v", l)
	}
	if newTimeLimit(5).next == nil {
		t.Error("no timer")
	}
}

func TestAStoppedWorkloadIsEndedToo(t *testing.T) {
	signals := watchSignals()
	limit := &timeLimit{seconds: 1, next: time.After(200 * time.Millisecond)}
	if code := attend(child(t, "kill -STOP $$; sleep 60"), false, limit, signals); code != exitTime {
		t.Errorf("exit %d", code)
	}
}

func TestReapCollectsWhatIsNotTheWorkload(t *testing.T) {
	other, pid := child(t, "exit 3"), child(t, "exit 4")
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if status, ended := reap(pid, false); ended {
			if exitCode(status) != 4 {
				t.Errorf("exit %d", exitCode(status))
			}
			break
		}
	}
	time.Sleep(50 * time.Millisecond)
	reap(pid, false)
	if _, err := syscall.Wait4(other, nil, syscall.WNOHANG, nil); !errors.Is(err, syscall.ECHILD) {
		t.Errorf("a zombie stayed: %v", err)
	}
}

func TestLookPath(t *testing.T) {
	good := writeFile(t, "tool", "#!/bin/sh\n", 0o755)
	plain := writeFile(t, "plain", "", 0o644)
	folder := filepath.Dir
	for _, c := range []struct {
		name, path string
		want       string
		err        error
	}{
		{"tool", folder(good), good, nil},
		{"tool", "relative:" + folder(good), good, nil},
		{"tool", ".", "", fs.ErrNotExist},
		{"plain", folder(plain) + ":/usr/bin", "", fs.ErrPermission},
		{plain, "", plain, fs.ErrPermission},
		{"sh", "", "/usr/bin/sh", nil},
		{"no-such-program", "", "", fs.ErrNotExist},
	} {
		got, err := lookPath(c.name, c.path)
		if got != c.want || !errors.Is(err, c.err) {
			t.Errorf("%s in %s: %q %v", c.name, c.path, got, err)
		}
	}
}
