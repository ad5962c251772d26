// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"syscall"
	"time"
)

// timeGrace is the time between TERM and KILL when the workload's time is over; tests shorten it.
var timeGrace = 10 * time.Second

// timeLimit is the plan's time_s, from go on.
type timeLimit struct {
	seconds int
	next    <-chan time.Time // nil when there is no limit
	over    bool
}

func newTimeLimit(seconds int) *timeLimit {
	l := &timeLimit{seconds: seconds}
	if seconds > 0 {
		l.next = time.After(time.Duration(seconds) * time.Second)
	}
	return l
}

// strike says that the time is over and asks the child and its process group to end. The child is asked by its own
// number too: it may have moved to another group.
func (l *timeLimit) strike(pid int) {
	l.over, l.next = true, time.After(timeGrace)
	l.tell()
	endBoth(pid, syscall.SIGTERM)
	endBoth(pid, syscall.SIGCONT) // a stopped process takes no TERM
}

// tell writes the line, but waits only so long: standard error is the workload's too, which can stop its flow.
func (l *timeLimit) tell() {
	told := make(chan struct{})
	go func() {
		defer close(told)
		complain(exitTime, "the workload's time is over: limits.time is %d s; it is killed in %v", l.seconds, timeGrace)
	}()
	select {
	case <-told:
	case <-time.After(time.Second):
	}
}

func endBoth(pid int, signal syscall.Signal) {
	syscall.Kill(-pid, signal)
	syscall.Kill(pid, signal)
}

// attend forwards signals to the child and reaps everything until the child has ended, or has outlived the grace after
// its time. It does not wait for that one's end: PID 1 exits, and the kernel kills whatever lives in its PID namespace,
// in which process group or session ever.
func attend(pid int, terminal bool, limit *timeLimit, signals watched) int {
	for {
		// Reap first: the child may have ended before SIGCHLD was watched.
		if status, ended := reap(pid, terminal); ended {
			if limit.over {
				return exitTime
			}
			return exitCode(status)
		}
		select {
		case <-signals.children:
		case <-limit.next:
			if limit.over {
				endBoth(pid, syscall.SIGKILL)
				return exitTime
			}
			limit.strike(pid)
		case s := <-signals.others:
			if !notForwarded[s] {
				syscall.Kill(pid, s.(syscall.Signal))
			}
		}
	}
}

// reap collects every child that has ended and says whether pid was one of them. A child that stopped itself on a
// terminal is continued: there is no shell above it that could ever do that, and the session would hang.
func reap(pid int, terminal bool) (status syscall.WaitStatus, ended bool) {
	for {
		var ws syscall.WaitStatus
		options := syscall.WNOHANG
		if terminal {
			options |= syscall.WUNTRACED
		}
		got, err := syscall.Wait4(-1, &ws, options, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || got <= 0 {
			return status, ended
		}
		switch {
		case got == pid && ws.Stopped():
			syscall.Kill(-pid, syscall.SIGCONT)
		case got == pid:
			status, ended = ws, true
		}
	}
}

func exitCode(ws syscall.WaitStatus) int {
	if ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ws.ExitStatus()
}
