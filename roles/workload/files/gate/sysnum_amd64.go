// SPDX-License-Identifier: BSD-4-Clause

package main

// System calls that package syscall does not name on this architecture.
const (
	sysSetns        = 308
	sysNameToHandle = 303
	sysBPF          = 321
	sysUserfaultfd  = 323
)
