// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"errors"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// runRole is the life of a workload's PID 1: confine itself, read the plan, listen, probe, report, wait, start, reap.
func runRole(args []string, at atStart) int {
	in, code := prepare(args, at, "run")
	if in == nil {
		return code
	}
	signals := watchSignals()
	if code, ok := waitForGo(in, signals); !ok {
		return code
	}
	return startWorkload(in.plan, in.token, signals)
}

// watched are the two streams of signals; SIGCHLD has its own, so that no flood of others can make it be missed.
type watched struct{ children, others chan os.Signal }

func watchSignals() watched {
	w := watched{make(chan os.Signal, 1), make(chan os.Signal, 64)}
	signal.Notify(w.others)
	signal.Reset(syscall.SIGCHLD, syscall.SIGURG) // SIGURG: the runtime preempts itself with it, often
	signal.Notify(w.children, syscall.SIGCHLD)
	return w
}

// notForwarded are signals that concern the gate's own process only: Go's preemption, broken pipes, job control.
var notForwarded = map[os.Signal]bool{syscall.SIGCHLD: true, syscall.SIGURG: true, syscall.SIGPIPE: true,
	syscall.SIGTTIN: true, syscall.SIGTTOU: true, syscall.SIGTSTP: true}

// waitForGo listens before it probes, so that the host never meets a closed door, and returns true on go.
func waitForGo(in *inside, signals watched) (code int, ok bool) {
	deadline := time.Now().Add(time.Duration(in.plan.DeadlineS) * time.Second)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: "@" + in.plan.Socket, Net: "unix"})
	if err != nil {
		return complain(exitInternal, "cannot listen: %v", err), false
	}
	host := newHostSide(l, deadline)
	go func() { host.publish(examine(in)) }()
	go host.accept()
	outcome := host.wait(signals.others)
	host.close()
	switch {
	case outcome.err != nil && errors.Is(outcome.err, os.ErrDeadlineExceeded):
		return complain(exitDeadline, "nobody said go within %d s", in.plan.DeadlineS), false
	case outcome.err != nil:
		return complain(exitInternal, "socket: %v", outcome.err), false
	case outcome.signal != 0:
		return complain(128+int(outcome.signal), "ended by signal %d before go", outcome.signal), false
	case outcome.stop != "":
		return complain(exitStopped, "told to stop: %s", outcome.stop), false
	}
	return 0, true
}
