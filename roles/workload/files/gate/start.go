// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"os"
	"sort"
	"strconv"
	"strings"
	"syscall"
)

// atStart is what this process was given, read before the gate (or Go's runtime) changes any of it.
type atStart struct {
	fds     []string // "3=/path" of every descriptor beyond 2
	fdsErr  error
	core    syscall.Rlimit
	coreErr error
	environ []string
}

func lookAround() atStart {
	at := atStart{environ: os.Environ()}
	at.fds, at.fdsErr = openDescriptors()
	at.coreErr = syscall.Getrlimit(syscall.RLIMIT_CORE, &at.core)
	return at
}

// openDescriptors lists what is open beyond 0, 1 and 2. Raw calls: os.ReadDir may open an epoll descriptor of its own.
func openDescriptors() ([]string, error) {
	dir, err := syscall.Open("/proc/self/fd", syscall.O_RDONLY|syscall.O_DIRECTORY|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	defer syscall.Close(dir)
	var names []string
	buf := make([]byte, 8192)
	for {
		n, err := syscall.ReadDirent(dir, buf)
		if err != nil {
			return nil, err
		}
		if n <= 0 {
			break
		}
		_, _, names = syscall.ParseDirent(buf[:n], -1, names)
	}
	found := []string{}
	for _, name := range names {
		if fd, err := strconv.Atoi(name); err == nil && fd > 2 && fd != dir {
			target, _ := os.Readlink("/proc/self/fd/" + name)
			if strings.HasPrefix(target, "anon_inode:[event") { // the runtime's poller, when it was faster than us
				continue
			}
			found = append(found, name+"="+target)
		}
	}
	sort.Strings(found)
	return found, nil
}

const (
	prSetDumpable     = 4
	prGetDumpable     = 3
	sysCloseRange     = 436
	closeRangeCloexec = 4
)

// harden makes this process opaque to the workload's uid and makes sure that a child inherits nothing but 0, 1 and 2.
func harden() error {
	if _, _, e := syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 0, 0); e != 0 {
		return e
	}
	syscall.Umask(0o022)
	if err := syscall.Setrlimit(syscall.RLIMIT_CORE, &syscall.Rlimit{}); err != nil {
		return err
	}
	return closeOnExec()
}

func closeOnExec() error {
	if _, _, e := syscall.RawSyscall(sysCloseRange, 3, ^uintptr(0)>>32, closeRangeCloexec); e == 0 {
		return nil
	}
	entries, err := os.ReadDir("/proc/self/fd") // kernels before 5.11
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
	return nil
}

// prepare is how a process that probes begins: "[--plan FILE]" and nothing else, confined before it reads anything. It
// returns nil and an exit code when it cannot go on.
func prepare(args []string, at atStart, role string) (*inside, int) {
	path, rest, err := planArgs(args)
	if err != nil || len(rest) > 0 {
		return nil, usage()
	}
	if err := harden(); err != nil {
		return nil, complain(exitInternal, "cannot confine itself: %v", err)
	}
	plan, token, code := readInputs(path)
	if plan == nil {
		return nil, code
	}
	return &inside{plan: plan, token: token, at: at, role: role}, 0
}

// readInputs reads the plan and the token that it names; nil and an exit code when it cannot.
func readInputs(path string) (*Plan, string, int) {
	plan, err := readPlan(path)
	if err != nil {
		return nil, "", complain(exitPlan, "plan: %v", err)
	}
	token, err := readToken(plan)
	if err != nil {
		return nil, "", complain(exitPlan, "token: %v", err)
	}
	return plan, token, 0
}

// beginService is how PID 1 of an enforcer begins: confined, and with an eye on the cable without which it has nothing
// to do (nil when it names none). It returns an exit code other than 0 when it cannot go on.
func beginService(cable string) (<-chan struct{}, int) {
	if err := harden(); err != nil {
		return nil, complain(exitInternal, "cannot confine itself: %v", err)
	}
	// The execute-only program made this process undumpable; here nobody is to be kept out, and the operator's own
	// `podman exec` needs access to its namespaces (prctl(2), PR_SET_DUMPABLE).
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, prSetDumpable, 1, 0)
	if cable == "" {
		return nil, 0
	}
	gone, err := watchCable(cable)
	if err != nil {
		return nil, complain(exitInternal, "cannot watch its cable: %v", err)
	}
	return gone, 0
}
