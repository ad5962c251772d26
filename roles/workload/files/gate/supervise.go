// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"
)

const (
	backoffStep = 200 * time.Millisecond
	backoffMax  = 5 * time.Second
	steadyAfter = 10 * time.Second // a child that lived this long starts the backoff anew
)

// killAfter is the time between TERM and KILL; tests shorten it.
var killAfter = 5 * time.Second

// event is one line on standard output, among the child's own lines; "asf" tells them apart.
type event struct {
	Asf     string `json:"asf"`
	Name    string `json:"name"`
	Event   string `json:"event"` // start, exit, stop
	PID     int    `json:"pid"`
	Status  string `json:"status"`
	AfterMS int64  `json:"after_ms"` // since the child's start
	Start   int    `json:"start"`    // how many times the child was started
	TS      string `json:"ts"`
}

// supervisor restarts one command for as long as the container lives: the container is never restarted as a whole,
// because its network namespace, and with it every cable, would be gone (invariant 2).
type supervisor struct {
	name    string
	argv    []string
	out     io.Writer
	signals watched
	cable   string          // the interface without which there is nothing to do
	gone    <-chan struct{} // closed when that one is gone; nil when there is none to watch
	starts  int
	failed  int // starts since the child was last steady
	began   time.Time
}

// superviseArgs reads NAME [--while INTERFACE] -- CMD [ARG...].
func superviseArgs(args []string) (name, cable string, argv []string, ok bool) {
	if len(args) == 0 || args[0] == "" || strings.HasPrefix(args[0], "--") {
		return "", "", nil, false
	}
	name, rest := args[0], args[1:]
	if len(rest) >= 2 && rest[0] == "--while" {
		cable, rest = rest[1], rest[2:]
	}
	if len(rest) < 2 || rest[0] != "--" {
		return "", "", nil, false
	}
	return name, cable, rest[1:], true
}

func superviseRole(args []string, _ atStart) int {
	name, cable, argv, ok := superviseArgs(args)
	if !ok {
		return usage()
	}
	gone, code := beginService(cable)
	if code != 0 {
		return code
	}
	s := &supervisor{name: name, argv: argv, out: os.Stdout, signals: watchSignals(), cable: cable, gone: gone}
	return s.run()
}

func (s *supervisor) run() int {
	for {
		pid, err := s.start()
		if err != nil {
			s.say("exit", 0, oneLine(err.Error(), 200))
		} else if status, stopped := s.attend(pid); stopped {
			return stoppedCode(status)
		}
		if why := s.pause(); why != "" {
			s.say("stop", 0, why)
			return 0
		}
	}
}

// lost is why the supervisor stops by itself: who was at the other end of its cable has ended, and with that one the
// reason to run. So a session whose workload ended holds nothing running, although nobody is there to close it.
func (s *supervisor) lost() string {
	return "cable " + s.cable + " is gone"
}

func (s *supervisor) start() (int, error) {
	s.starts++
	s.began = time.Now()
	program, err := lookPath(s.argv[0], os.Getenv("PATH"))
	if err != nil {
		return 0, err
	}
	pid, err := syscall.ForkExec(program, s.argv, &syscall.ProcAttr{
		Env: os.Environ(), Files: []uintptr{0, 1, 2}, Sys: &syscall.SysProcAttr{Setpgid: true}})
	if err != nil {
		return 0, fmt.Errorf("%s: %w", program, err)
	}
	s.say("start", pid, "")
	return pid, nil
}

// attend waits for the child's end and says whether that end was asked for.
func (s *supervisor) attend(pid int) (status syscall.WaitStatus, stopped bool) {
	var kill <-chan time.Time
	gone := s.gone
	stop := func(why string) {
		if !stopped {
			stopped, kill = true, time.After(killAfter)
			s.say("stop", pid, why)
		}
		syscall.Kill(-pid, syscall.SIGTERM)
	}
	for {
		if status, ended := reap(pid, false); ended {
			syscall.Kill(-pid, syscall.SIGKILL) // what it left behind would hold its listeners
			s.say("exit", pid, statusWord(status))
			return status, stopped
		}
		select {
		case <-s.signals.children:
		case <-kill:
			syscall.Kill(-pid, syscall.SIGKILL)
		case <-gone:
			gone = nil
			stop(s.lost())
		case sig := <-s.signals.others:
			switch {
			case sig == syscall.SIGTERM || sig == syscall.SIGINT:
				stop("")
			case !notForwarded[sig]:
				syscall.Kill(pid, sig.(syscall.Signal))
			}
		}
	}
}

// pause waits before the next start, a little longer each time; it says why there is to be none, when there is not.
func (s *supervisor) pause() (stop string) {
	if time.Since(s.began) >= steadyAfter {
		s.failed = 0
	}
	s.failed++
	wait := time.NewTimer(min(time.Duration(s.failed)*backoffStep, backoffMax))
	defer wait.Stop()
	for {
		select {
		case <-wait.C:
			return ""
		case <-s.gone:
			return s.lost()
		case <-s.signals.children:
			reap(0, false)
		case sig := <-s.signals.others:
			if sig == syscall.SIGTERM || sig == syscall.SIGINT {
				return "between two starts"
			}
		}
	}
}

// stoppedCode: a child that ended by the TERM or KILL it was sent has done what was asked.
func stoppedCode(status syscall.WaitStatus) int {
	if status.Signaled() && (status.Signal() == syscall.SIGTERM || status.Signal() == syscall.SIGKILL) {
		return 0
	}
	return exitCode(status)
}

func statusWord(status syscall.WaitStatus) string {
	if status.Signaled() {
		return fmt.Sprintf("signal %d", int(status.Signal()))
	}
	return fmt.Sprintf("code %d", status.ExitStatus())
}

// say writes one line with one write, so that it is not mixed with the child's.
func (s *supervisor) say(what string, pid int, status string) {
	line, err := json.Marshal(event{"supervisor", s.name, what, pid, status, time.Since(s.began).Milliseconds(), s.starts,
		time.Now().UTC().Format(time.RFC3339)})
	if err == nil {
		s.out.Write(append(line, '\n'))
	}
}
