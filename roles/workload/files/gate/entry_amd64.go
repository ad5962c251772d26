// SPDX-License-Identifier: BSD-4-Clause

package main

// Ways into the kernel that forkEntry knows.
const (
	entryInt80 = 0 // int $0x80: the i386 table
	entryX32   = 1 // syscall with bit 30 set: the x32 table
)

// forkEntry makes a child that enters the kernel by the given way with the given number and exits: 1 when the call
// came back, 2 when it came back with ENOSYS. It returns the child's pid, or a negative errno. The child runs no Go
// code at all, so neither threads nor the runtime's signal handlers matter.
//
//go:noescape
func forkEntry(entry, nr uintptr) (pid int)

const entrySupported = true
