// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"os"
	"syscall"
	"time"
)

// holdRole runs NAME --while INTERFACE: PID 1 of the gateway. It starts nothing and listens nowhere. What enforces is
// the kernel, in the network namespace that lives as long as this process does (invariant 2).
func holdRole(args []string, _ atStart) int {
	name, cable, rest, ok := serviceArgs(args)
	if !ok || cable == "" || len(rest) != 0 {
		return usage()
	}
	gone, code := beginService(cable)
	if code != 0 {
		return code
	}
	s := &supervisor{name: name, out: os.Stdout, signals: watchSignals(), cable: cable, gone: gone}
	return s.hold(lastLook)
}

// lastLook is how long the namespace stays after its cable: its counters go with it, and whoever closes a session whose
// workload has ended reads them first.
const lastLook = 10 * time.Second

// hold waits for a reason to end, and says which it was in the supervisor's own words. After the cable it stays for
// another while, unless it is told to end.
func (s *supervisor) hold(after time.Duration) int {
	var over <-chan time.Time
	s.starts, s.began = 1, time.Now()
	s.say("start", os.Getpid(), "")
	for {
		select {
		case <-s.gone:
			s.say("stop", os.Getpid(), s.lost())
			s.gone, over = nil, time.After(after)
		case <-over:
			s.say("exit", os.Getpid(), "code 0")
			return 0
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
