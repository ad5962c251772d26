// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"os"
	"strings"
	"syscall"
	"time"
)

// holdRole runs NAME: PID 1 of the gateway. It starts nothing and listens nowhere. What enforces is the kernel, in the
// network namespace that lives as long as this process does (invariant 2). So do the rules' counters, which are evidence
// (invariant 9): it outlives its cable, and ends when the session's teardown has read them and says so.
func holdRole(args []string, _ atStart) int {
	if len(args) != 1 || args[0] == "" || strings.HasPrefix(args[0], "-") {
		return usage()
	}
	if _, code := beginService(""); code != 0 {
		return code
	}
	s := &supervisor{name: args[0], out: os.Stdout, signals: watchSignals()}
	return s.hold()
}

// hold waits to be told to end, and says so in the supervisor's own words.
func (s *supervisor) hold() int {
	s.starts, s.began = 1, time.Now()
	s.say("start", os.Getpid(), "")
	for {
		select {
		case <-s.signals.children:
			reap(0, false)
		case sig := <-s.signals.others:
			if sig == syscall.SIGTERM || sig == syscall.SIGINT {
				s.say("stop", os.Getpid(), "")
				s.say("exit", os.Getpid(), "code 0")
				return 0
			}
		}
	}
}
