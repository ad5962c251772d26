// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"encoding/binary"
	"sort"
	"syscall"
	"unsafe"
)

func tryPair(family uintptr, pair *[2]int32) string {
	_, _, errno := syscall.Syscall6(syscall.SYS_SOCKETPAIR, family, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0,
		uintptr(unsafe.Pointer(pair)), 0, 0)
	if errno != 0 {
		return errorWord(errno)
	}
	syscall.Close(int(pair[0]))
	syscall.Close(int(pair[1]))
	return "ok"
}

// controlsTerminal says whether fd is the controlling terminal of this process, so that job control applies.
func controlsTerminal(fd uintptr) bool {
	var group int32
	_, _, errno := syscall.Syscall(syscall.SYS_IOCTL, fd, syscall.TIOCGPGRP, uintptr(unsafe.Pointer(&group)))
	return errno == 0
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

// nativeUint32 reads a netlink attribute, which is in the machine's byte order.
func nativeUint32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return binary.NativeEndian.Uint32(b)
}
