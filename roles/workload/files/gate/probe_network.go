// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"time"
)

func networkProbes(in *inside) []probe {
	list := []probe{one("net-links", probeLinks), one("net-routes", probeRoutes), one("no-ipv6", probeNoIPv6),
		one("loopback", probeLoopback)}
	pr := &in.plan.Probes
	for _, o := range []struct {
		wanted bool
		probe  probe
	}{
		{len(pr.Unreach) > 0, one("unreach", probeUnreach)},
		{len(pr.Reach) > 0, one("reach", probeReach)},
		{len(pr.Closed) > 0, one("closed", probeClosed)},
		{len(pr.DNS) > 0, one("dns-silent", probeDNS)},
		{pr.Deny != nil, one("proxy-deny", probeDeny)},
		{pr.Allow != nil, probe{[]string{"proxy-allow", "proxy-reach"}, allowBound, probeAllow}},
		{pr.TLS != nil, one("tls-deny", probeTLSDeny)},
		{pr.TLS != nil && pr.TLS.Allow != "", probe{[]string{"tls-allow"}, allowBound, func(ctx context.Context, in *inside) []Check {
			return []Check{probeTLSAllow(ctx, in)}
		}}},
		{pr.Policy != "", one("policy-current", probePolicy)},
		{pr.Front != nil, one("front-control", probeFront)},
		{pr.Front != nil, one("front-refuses", probeFrontRefuses)},
	} {
		if o.wanted {
			list = append(list, o.probe)
		}
	}
	return append(list, routedProbes(pr.Routed)...)
}

// dialWord connects and hangs up; the answer is one word.
func dialWord(ctx context.Context, network, addr string) string {
	return dialWithin(ctx, dialBound, network, addr)
}

func dialWithin(ctx context.Context, bound time.Duration, network, addr string) string {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err == nil {
		c.Close()
		return "connected"
	}
	return errorWord(err)
}

// eachAddress tries all addresses with all kinds at once and returns "addr/kind=word" for each, in order.
func eachAddress(addrs []string, kinds []string, try func(addr, kind string) string) []string {
	words := make([]string, len(addrs)*len(kinds))
	var wg sync.WaitGroup
	for i, a := range addrs {
		for j, k := range kinds {
			wg.Add(1)
			go func() {
				defer wg.Done()
				words[i*len(kinds)+j] = a + "/" + k + "=" + try(a, k)
			}()
		}
	}
	wg.Wait()
	return words
}

// judgeWords takes the worst verdict of words "addr/kind=word".
func judgeWords(id string, words []string, verdictOf func(addr, kind, word string) string) Check {
	c := Check{ID: id, Got: strings.Join(words, " "), Verdict: pass}
	for _, w := range words {
		left, word, _ := strings.Cut(w, "=")
		slash := strings.LastIndex(left, "/")
		switch v := verdictOf(left[:slash], left[slash+1:], word); {
		case v == fail:
			c.Verdict, c.Reason = fail, w
		case v == inconclusive && c.Verdict != fail:
			c.Verdict, c.Reason = inconclusive, w
		case v == warn && c.Verdict == pass:
			c.Verdict, c.Reason = warn, w
		}
	}
	return c
}

// localTrouble are errors of this process or host that say nothing about a path.
var localTrouble = map[string]bool{"EMFILE": true, "ENFILE": true, "ENOMEM": true, "ENOBUFS": true, "EAGAIN": true,
	"error": true}

func probeUnreach(ctx context.Context, in *inside) Check {
	words := eachAddress(in.plan.Probes.Unreach, []string{"tcp", "udp", "icmp"}, func(addr, kind string) string {
		if kind == "icmp" {
			return icmpWord(addr)
		}
		return dialWord(ctx, kind, addr)
	})
	return judgeWords("unreach", words, unreachVerdict)
}

// unreachVerdict: a timeout or a refusal means that a packet went out, so there was a route.
func unreachVerdict(addr, kind, word string) string {
	switch {
	case word == "ENETUNREACH":
		return pass
	case strings.HasPrefix(addr, "[") && (word == "EADDRNOTAVAIL" || word == "EAFNOSUPPORT"):
		return pass // IPv6 is off
	case kind == "icmp" && word == "socket-EACCES":
		return pass // ping_group_range leaves this gid out: no ICMP socket at all
	case localTrouble[word] || strings.HasPrefix(word, "socket-"):
		return inconclusive
	}
	return fail
}

// icmpWord connects an unprivileged ICMP socket, which asks the routing table and sends nothing.
func icmpWord(addr string) string {
	ap := netip.MustParseAddrPort(addr)
	family, proto := syscall.AF_INET, syscall.IPPROTO_ICMP
	var sa syscall.Sockaddr = &syscall.SockaddrInet4{}
	if ap.Addr().Is4() {
		sa.(*syscall.SockaddrInet4).Addr = ap.Addr().As4()
	} else {
		family, proto = syscall.AF_INET6, syscall.IPPROTO_ICMPV6
		sa = &syscall.SockaddrInet6{Addr: ap.Addr().As16()}
	}
	fd, err := syscall.Socket(family, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, proto)
	if err != nil {
		return "socket-" + errorWord(err)
	}
	defer syscall.Close(fd)
	if err := syscall.Connect(fd, sa); err != nil {
		return errorWord(err)
	}
	return "connected"
}

func probeReach(ctx context.Context, in *inside) Check {
	words := eachAddress(in.plan.Probes.Reach, []string{"tcp"}, func(addr, kind string) string {
		return dialWord(ctx, kind, addr)
	})
	return judgeWords("reach", words, func(_, _, word string) string {
		if word == "connected" {
			return pass
		}
		return inconclusive // a listener that is not there is infrastructure, not policy
	})
}

func probeClosed(ctx context.Context, in *inside) Check {
	words := eachAddress(in.plan.Probes.Closed, []string{"tcp"}, func(addr, kind string) string {
		return dialWord(ctx, kind, addr)
	})
	return judgeWords("closed", words, func(_, _, word string) string {
		switch {
		case word == "connected":
			return fail
		case word == "ECONNREFUSED", word == "ENETUNREACH", word == "EHOSTUNREACH":
			return pass
		case (word == "timeout" || word == "ETIMEDOUT") && in.plan.Probes.DroppedOK:
			return pass
		}
		return inconclusive
	})
}
