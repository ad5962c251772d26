// SPDX-License-Identifier: BSD-4-Clause

package main

// System calls that package syscall does not name on this architecture.
const (
	sysSetns        = 268
	sysNameToHandle = 264
	sysBPF          = 280
	sysUserfaultfd  = 282
)
