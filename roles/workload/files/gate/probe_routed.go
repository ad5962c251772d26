// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"net/netip"
	"strings"
	"syscall"
	"time"
)

// silenceBound is how long a packet's answer is waited for where none is expected, or none may come. What proves a
// denial is not this time but the gateway's own count of what it dropped, which the host reads.
const silenceBound = 400 * time.Millisecond

func routedProbes(r *Routed) []probe {
	if r == nil {
		return nil
	}
	list := []probe{one("routed-allow", probeRoutedAllow), one("routed-block", probeRoutedBlock)}
	if len(r.UDP) > 0 {
		list = append(list, one("routed-udp", probeRoutedUDP))
	}
	if len(r.ICMP) > 0 {
		list = append(list, one("routed-icmp", probeRoutedICMP))
	}
	return append(list, one("gateway-silent", probeGatewaySilent))
}

// probeRoutedAllow: only a connection is a positive control; whoever refuses or is silent may be anybody.
func probeRoutedAllow(ctx context.Context, in *inside) Check {
	words := eachAddress([]string{in.plan.Probes.Routed.Allowed}, []string{"tcp"}, func(addr, kind string) string {
		return dialWord(ctx, kind, addr)
	})
	return judgeWords("routed-allow", words, func(_, _, word string) string {
		if word == "connected" {
			return pass
		}
		return inconclusive
	})
}

// probeRoutedBlock says what it saw. That the port is open, and that the gateway dropped the attempt, the host knows.
func probeRoutedBlock(ctx context.Context, in *inside) Check {
	words := eachAddress([]string{in.plan.Probes.Routed.Blocked}, []string{"tcp"}, func(addr, kind string) string {
		return dialWithin(ctx, silenceBound, kind, addr)
	})
	return judgeWords("routed-block", words, func(_, _, word string) string {
		switch word {
		case "connected":
			return fail
		case "timeout", "ETIMEDOUT", "EHOSTUNREACH", "ECONNREFUSED":
			return pass
		}
		return inconclusive
	})
}

// answerVerdict: silence proves nothing, for UDP and ICMP have no connection; it stops no open either.
func answerVerdict(_, _, word string) string {
	switch word {
	case "answered", "ECONNREFUSED":
		return pass // a port that is closed answers by ICMP: the datagram got there
	case "silent":
		return warn
	}
	return inconclusive
}

func probeRoutedUDP(ctx context.Context, in *inside) Check {
	words := eachAddress(in.plan.Probes.Routed.UDP, []string{"udp"}, func(addr, kind string) string {
		return datagramWord(ctx, addr)
	})
	return judgeWords("routed-udp", words, answerVerdict)
}

func probeRoutedICMP(_ context.Context, in *inside) Check {
	words := eachAddress(in.plan.Probes.Routed.ICMP, []string{"icmp"}, func(addr, _ string) string {
		return echoWord(addr)
	})
	return judgeWords("routed-icmp", words, answerVerdict)
}

// probeGatewaySilent: the gateway answers nothing itself, not even by a refusal.
func probeGatewaySilent(ctx context.Context, in *inside) Check {
	r := in.plan.Probes.Routed
	words := eachAddress(r.Silent, []string{"tcp", "udp"}, func(addr, kind string) string {
		if kind == "udp" {
			return datagramWord(ctx, addr)
		}
		return dialWithin(ctx, silenceBound, kind, addr)
	})
	if len(r.ICMP) > 0 { // without such a rule the agent has no ICMP socket at all
		words = append(words, r.Via+"/icmp="+echoWord(r.Via))
	}
	return judgeWords("gateway-silent", words, silentVerdict)
}

func silentVerdict(_, _, word string) string {
	switch {
	case word == "timeout", word == "ETIMEDOUT", word == "silent":
		return pass
	case localTrouble[word], strings.HasPrefix(word, "socket-"), word == "ENETUNREACH":
		return inconclusive
	}
	return fail
}

// datagramWord sends one datagram, a question where the port says which one a server would answer: "answered",
// "silent", or an error's name.
func datagramWord(ctx context.Context, addr string) string {
	payload := []byte("\n")
	if strings.HasSuffix(addr, ":53") {
		payload = dnsQuery
	}
	return askWord(ctx, silenceBound, "udp", addr, payload)
}

const (
	icmpEcho      = 8
	icmpEchoReply = 0
	icmpHeader    = 8
)

// echoWord sends one ICMP echo request from an unprivileged socket (icmp(7), net.ipv4.ping_group_range): "answered",
// "silent", or an error's name. The kernel fills in identifier and checksum.
func echoWord(addr string) string {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, syscall.IPPROTO_ICMP)
	if err != nil {
		return "socket-" + errorWord(err)
	}
	defer syscall.Close(fd)
	wait := syscall.NsecToTimeval(silenceBound.Nanoseconds())
	if err := syscall.SetsockoptTimeval(fd, syscall.SOL_SOCKET, syscall.SO_RCVTIMEO, &wait); err != nil {
		return "socket-" + errorWord(err)
	}
	request := append(make([]byte, icmpHeader), newNonce()...)
	request[0] = icmpEcho
	binary.BigEndian.PutUint16(request[6:], 1)
	to := &syscall.SockaddrInet4{Addr: netip.MustParseAddr(addr).As4()}
	if err := syscall.Connect(fd, to); err != nil {
		return errorWord(err)
	}
	if _, err := syscall.Write(fd, request); err != nil {
		return errorWord(err)
	}
	return echoReply(fd, request[icmpHeader:])
}

func echoReply(fd int, payload []byte) string {
	answer := make([]byte, 1500)
	for end := time.Now().Add(silenceBound); ; {
		n, err := syscall.Read(fd, answer)
		switch {
		case err == syscall.EINTR && time.Now().Before(end):
		case err == syscall.EAGAIN || err == syscall.EINTR:
			return "silent"
		case err != nil:
			return errorWord(err)
		case n > icmpHeader && answer[0] == icmpEchoReply && bytes.Equal(answer[icmpHeader:n], payload):
			return "answered"
		case time.Now().After(end):
			return "silent"
		}
	}
}
