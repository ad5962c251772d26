// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"context"
	"fmt"
	"runtime"
	"syscall"
)

const all = ^uintptr(0)

// refusal is a system call with arguments for which the kernel itself gives another answer than the filter's EPERM or
// ENOSYS, so that a refusal is the filter's and not the kernel's (nil pointers, bad flags, bad descriptors).
type refusal struct {
	id     string
	nr     uintptr
	args   [4]uintptr
	kernel string // the kernel's own answer: what a nested sandbox must see where it may use the call
	nested bool   // given back by nested_sandbox
}

var refusals = []refusal{
	{"sys-unshare", syscall.SYS_UNSHARE, [4]uintptr{0}, "ok", true},
	{"sys-setns", sysSetns, [4]uintptr{all, 0}, "EBADF", true},
	{"sys-mount", syscall.SYS_MOUNT, [4]uintptr{0, 0, 0, 0}, "EFAULT", true},
	{"sys-umount", syscall.SYS_UMOUNT2, [4]uintptr{0, 0}, "EFAULT", true},
	{"sys-chroot", syscall.SYS_CHROOT, [4]uintptr{0}, "EFAULT", true},
	{"sys-open-tree", 428, [4]uintptr{all, 0, 0xffffffff}, "EINVAL", false},
	{"sys-fsconfig", 431, [4]uintptr{all, 0, 0, 0}, "EINVAL", false},
	{"sys-mount-attr", 442, [4]uintptr{all, 0, 0xffffffff, 0}, "EINVAL", false},
	{"sys-clone3", 435, [4]uintptr{0, 0}, "EINVAL", false},
	{"sys-io-uring", 425, [4]uintptr{1, 0}, "EFAULT", false},
	{"sys-keyctl", syscall.SYS_KEYCTL, [4]uintptr{0, ^uintptr(2), 0, 0}, "ok", false}, // the session keyring's id
	{"sys-add-key", syscall.SYS_ADD_KEY, [4]uintptr{0, 0, 0, 0}, "EFAULT", false},
	{"sys-request-key", syscall.SYS_REQUEST_KEY, [4]uintptr{0, 0, 0, 0}, "EFAULT", false},
	{"sys-bpf", sysBPF, [4]uintptr{0, 0, 1 << 20}, "E2BIG", false},
	{"sys-userfaultfd", sysUserfaultfd, [4]uintptr{0xffffffff}, "EINVAL", false},
	{"sys-perf", syscall.SYS_PERF_EVENT_OPEN, [4]uintptr{0, 0, all, all}, "EINVAL", false},
	{"sys-file-handle", sysNameToHandle, [4]uintptr{all, 0, 0, 0}, "EFAULT", false},
}

func syscallProbes(*inside) []probe {
	list := []probe{}
	for _, r := range refusals {
		list = append(list, one(r.id, r.probe))
	}
	return append(list, one("clone-newuser", probeCloneNewuser),
		one("entry-int80", entryProbe("entry-int80", entryInt80, 20)), // getpid of the i386 table
		one("entry-x32", entryProbe("entry-x32", entryX32, 39)))       // getpid of the x32 table
}

func (r refusal) probe(_ context.Context, in *inside) Check {
	_, _, errno := syscall.Syscall6(r.nr, r.args[0], r.args[1], r.args[2], r.args[3], 0, 0)
	got := "ok"
	if errno != 0 {
		got = errorWord(errno)
	}
	refused := got == "ENOSYS" || (got == "EPERM" && r.id != "sys-clone3")
	if r.nested && in.plan.NestedSandbox {
		return Check{ID: r.id, Got: got, Verdict: verdictIf(got == r.kernel)}
	}
	return Check{ID: r.id, Got: got, Verdict: verdictIf(refused)}
}

// nothingToExecute is a path below a file, so that no child of a probe ever becomes a program: one that became this
// binary could start the same probe again, and so on.
const nothingToExecute = "/proc/self/exe/nothing"

// probeCloneNewuser uses clone: unshare(CLONE_NEWUSER) in a threaded process is EINVAL even without any filter. Where
// clone is let through, the child exists in its namespace and then fails with ENOTDIR, which ForkExec passes on.
func probeCloneNewuser(_ context.Context, in *inside) Check {
	_, err := syscall.ForkExec(nothingToExecute, []string{"nothing"}, &syscall.ProcAttr{
		Sys: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER}})
	got, want := errorWord(err), "EPERM"
	if got == "ENOTDIR" {
		got = "ran"
	}
	if in.plan.NestedSandbox {
		want = "ran"
	}
	return Check{ID: "clone-newuser", Got: got, Verdict: verdictIf(got == want)}
}

// entryProbe tells whether another system call table can be entered. Only "returned" is a way in: SIGSYS is the filter,
// SIGSEGV and ENOSYS a kernel that does not have that table at all.
func entryProbe(id string, entry, nr uintptr) func(context.Context, *inside) Check {
	return func(context.Context, *inside) Check {
		if !entrySupported {
			return Check{ID: id, Got: "none-on-" + runtime.GOARCH, Verdict: pass}
		}
		pid := forkEntry(entry, nr)
		if pid < 0 {
			return Check{ID: id, Verdict: inconclusive, Reason: fmt.Sprintf("fork: errno %d", -pid)}
		}
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
			return Check{ID: id, Verdict: inconclusive, Reason: err.Error()}
		}
		got := entryWord(status)
		return Check{ID: id, Got: got, Verdict: verdictIf(got != "returned" && got != "unknown")}
	}
}

func entryWord(status syscall.WaitStatus) string {
	switch {
	case status.Signaled() && status.Signal() == syscall.SIGSYS:
		return "SIGSYS"
	case status.Signaled() && status.Signal() == syscall.SIGSEGV:
		return "SIGSEGV"
	case status.Exited() && status.ExitStatus() == 2:
		return "ENOSYS"
	case status.Exited() && status.ExitStatus() == 1:
		return "returned"
	}
	return "unknown"
}
