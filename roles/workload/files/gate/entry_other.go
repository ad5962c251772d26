// SPDX-License-Identifier: BSD-4-Clause

//go:build !amd64

package main

const (
	entryInt80     = 0
	entryX32       = 1
	entrySupported = false // 64-bit code has no instruction that enters another table here
)

func forkEntry(_, _ uintptr) int { return -1 }
