// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"context"
	"fmt"
	"strings"
	"syscall"
)

const (
	afVsock  = 40
	afAlg    = 38
	highBit  = 1 << 32
	families = 64 // beyond the kernel's AF_MAX (46), so that newer families are covered
)

func socketProbes() []probe {
	return []probe{
		one("sock-control", probeSocketControl),
		one("sock-families", probeFamilies),
		one("sock-vsock", probeVsock),
		one("sock-highbits", probeHighBits),
		one("sock-netlink", probeNetlink),
		one("sock-raw", probeRaw),
		one("sock-pair", probePair),
	}
}

// trySocket makes and closes a socket with raw 64-bit arguments and returns "ok" or the errno's name.
func trySocket(family, kind, proto uintptr) string {
	fd, _, errno := syscall.Syscall(syscall.SYS_SOCKET, family, kind|syscall.SOCK_CLOEXEC, proto)
	if errno != 0 {
		return errorWord(errno)
	}
	syscall.Close(int(fd))
	return "ok"
}

// refusedWords counts the tries that ended in the filter's ENOSYS and lists the others by name.
func refusedWords(id string, tries map[string]string) Check {
	others := []string{}
	for _, name := range sortedKeys(tries) {
		if tries[name] != "ENOSYS" {
			others = append(others, name+"="+tries[name])
		}
	}
	words := append([]string{fmt.Sprintf("refused=%d/%d", len(tries)-len(others), len(tries))}, others...)
	return Check{ID: id, Got: strings.Join(words, " "), Verdict: verdictIf(len(others) == 0 && len(tries) > 0)}
}

// probeSocketControl shows that socket() itself works, so that the refusals beside it mean something (L6).
func probeSocketControl(context.Context, *inside) Check {
	got := fmt.Sprintf("unix=%s inet=%s inet6=%s netlink=%s",
		trySocket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0), trySocket(syscall.AF_INET, syscall.SOCK_STREAM, 0),
		trySocket(syscall.AF_INET6, syscall.SOCK_STREAM, 0), trySocket(syscall.AF_NETLINK, syscall.SOCK_RAW, 0))
	// INET6 passes the filter; a kernel without IPv6 answers for itself (N10).
	ok := strings.HasPrefix(got, "unix=ok inet=ok inet6=ok ") || strings.HasPrefix(got, "unix=ok inet=ok inet6=EAFNOSUPPORT ")
	return Check{ID: "sock-control", Got: got, Verdict: verdictIf(ok && strings.HasSuffix(got, " netlink=ok"))}
}

func probeFamilies(context.Context, *inside) Check {
	tries := map[string]string{}
	for f := uintptr(0); f < families; f++ {
		switch f {
		case syscall.AF_UNIX, syscall.AF_INET, syscall.AF_INET6, syscall.AF_NETLINK:
		default:
			tries[fmt.Sprintf("family-%d", f)] = trySocket(f, syscall.SOCK_DGRAM, 0)
		}
	}
	return refusedWords("sock-families", tries)
}

func probeVsock(context.Context, *inside) Check {
	return refusedWords("sock-vsock", map[string]string{
		"stream": trySocket(afVsock, syscall.SOCK_STREAM, 0), "dgram": trySocket(afVsock, syscall.SOCK_DGRAM, 0),
		"seqpacket": trySocket(afVsock, syscall.SOCK_SEQPACKET, 0)})
}

func probeHighBits(context.Context, *inside) Check {
	const audit = 9
	return refusedWords("sock-highbits", map[string]string{
		"vsock": trySocket(highBit|afVsock, syscall.SOCK_STREAM, 0), "alg": trySocket(highBit|afAlg, syscall.SOCK_SEQPACKET, 0),
		"packet": trySocket(highBit|syscall.AF_PACKET, syscall.SOCK_RAW, 0),
		"audit":  trySocket(syscall.AF_NETLINK, syscall.SOCK_RAW, highBit|audit)})
}

func probeNetlink(context.Context, *inside) Check {
	tries := map[string]string{}
	for proto := uintptr(1); proto < 32; proto++ {
		tries[fmt.Sprintf("proto-%d", proto)] = trySocket(syscall.AF_NETLINK, syscall.SOCK_RAW, proto)
	}
	return refusedWords("sock-netlink", tries)
}

func probeRaw(_ context.Context, in *inside) Check {
	got := trySocket(syscall.AF_INET, syscall.SOCK_RAW, syscall.IPPROTO_ICMP)
	if in.plan.NetRaw {
		return Check{ID: "sock-raw", Got: got, Verdict: verdictIf(got == "ok")}
	}
	return Check{ID: "sock-raw", Got: got, Verdict: verdictIf(got == "ENOSYS")}
}

// probePair: socketpair takes a family too, and some families (TIPC) implement it.
func probePair(context.Context, *inside) Check {
	tries := map[string]string{}
	for _, f := range []uintptr{syscall.AF_INET, 30, afVsock, highBit | syscall.AF_UNIX} {
		var pair [2]int32
		tries[fmt.Sprintf("family-%d", f)] = tryPair(f, &pair)
	}
	return refusedWords("sock-pair", tries)
}
