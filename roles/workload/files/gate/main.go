// SPDX-License-Identifier: BSD-4-Clause

// Command gate is PID 1 of every container that ASF starts (and will be the init of a microVM's guest).
//
//	gate run [--plan FILE]              PID 1 of a workload: probe from inside, report, wait for go, start the workload
//	gate supervise NAME [--while INTERFACE] -- CMD [ARG...]
//	                                    PID 1 of Caddy and of the broker: restart CMD, reap; stop on request, and when
//	                                    the cable to who needs it is gone
//	gate hold NAME                      PID 1 of the gateway: hold its namespace until it is told to end; start nothing
//	gate probe [--plan FILE]            the inside probes on a live session; one JSON report on standard output
//	gate exec [--plan FILE] -- CMD ...  replace itself by CMD with the planned environment
//	gate version
//
// The plan, the token and everything else that it needs come from mounted files, never from the environment. Nothing
// that the gate says is trusted by the host: its report is data (invariant 3). The program is mounted execute-only, so
// that a fresh run on a live session is undumpable before its first instruction.
package main

import (
	"fmt"
	"os"
	"runtime"
)

// Exit codes, beside the workload's own (which are passed on) and 128+n for a signal.
const (
	exitUsage    = 64  // wrong arguments
	exitInternal = 70  // the kernel refused something that the gate cannot do without
	exitDeadline = 75  // nobody said go in time
	exitStopped  = 76  // the host said stop
	exitPlan     = 78  // plan or token missing, unreadable or wrong
	exitTime     = 124 // the workload's time (limits.time) was over
	exitCannot   = 126
	exitNotFound = 127
)

// Version of the report and of the plan that this gate speaks.
const protocolVersion = 1

// roles maps argv[1] to what this process shall be. A guest's init becomes one more entry: it mounts what a container
// engine would have mounted, then does what "run" does.
var roles = map[string]func(args []string, at atStart) int{
	"run":       runRole,
	"supervise": superviseRole,
	"hold":      holdRole,
	"probe":     probeRole,
	"exec":      execRole,
	"version":   versionRole,
}

func main() {
	at := lookAround()
	if len(os.Args) < 2 || roles[os.Args[1]] == nil {
		os.Exit(usage())
	}
	os.Exit(roles[os.Args[1]](os.Args[2:], at))
}

func usage() int {
	fmt.Fprintln(os.Stderr, "usage: gate run [--plan FILE] | supervise NAME [--while INTERFACE] -- CMD [ARG...] |"+
		" hold NAME | probe [--plan FILE] | exec [--plan FILE] -- CMD [ARG...] | version")
	return exitUsage
}

func versionRole([]string, atStart) int {
	fmt.Printf("gate protocol %d %s %s/%s\n", protocolVersion, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return 0
}

// complain writes the one line that a failure leaves in the container's log.
func complain(code int, format string, args ...any) int {
	fmt.Fprintf(os.Stderr, "gate: %s\n", oneLine(fmt.Sprintf(format, args...), 500))
	return code
}
