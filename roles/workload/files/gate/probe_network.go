// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"
)

func networkProbes(in *inside) []probe {
	list := []probe{one("net-links", probeLinks), one("net-routes", probeRoutes), one("no-ipv6", probeNoIPv6)}
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
		{pr.Front != nil, one("front-control", probeFront)},
		{pr.Front != nil, one("front-refuses", probeFrontRefuses)},
	} {
		if o.wanted {
			list = append(list, o.probe)
		}
	}
	return list
}

// probeLinks counts links that are up: kernels put tunnel devices, down, into new namespaces by themselves.
func probeLinks(_ context.Context, in *inside) Check {
	links, err := net.Interfaces()
	if err != nil {
		return Check{ID: "net-links", Verdict: inconclusive, Reason: err.Error()}
	}
	names := []string{}
	for _, l := range links {
		if l.Flags&net.FlagUp != 0 && l.Name != "lo" {
			names = append(names, l.Name)
		}
	}
	want := ""
	if len(in.plan.Probes.peers()) > 0 {
		want = "eth0"
	}
	got := strings.Join(names, " ")
	return Check{ID: "net-links", Got: "up=" + strings.Join(names, ","), Verdict: verdictIf(got == want)}
}

// probeRoutes reads every table and both families by netlink: /proc/net/route shows the main table of IPv4 alone.
func probeRoutes(_ context.Context, in *inside) Check {
	raw, err := syscall.NetlinkRIB(syscall.RTM_GETROUTE, syscall.AF_UNSPEC)
	if err != nil {
		return Check{ID: "net-routes", Verdict: inconclusive, Reason: err.Error()}
	}
	routes, err := parseRoutes(raw)
	if err != nil {
		return Check{ID: "net-routes", Verdict: inconclusive, Reason: err.Error()}
	}
	peers, got, problems := in.plan.Probes.peers(), []string{}, []string{}
	for _, r := range routes {
		got = append(got, r.word())
		if host, ok := strings.CutSuffix(r.dst, "/32"); !ok || !peers[host] || r.via != "" {
			problems = append(problems, r.dst)
		}
	}
	for peer := range peers {
		if !strings.Contains(" "+strings.Join(got, " "), " "+peer+"/32,") {
			problems = append(problems, "missing "+peer)
		}
	}
	sort.Strings(problems)
	return Check{ID: "net-routes", Got: strings.Join(append([]string{fmt.Sprintf("routes=%d", len(got))}, got...), " "),
		Verdict: verdictIf(len(problems) == 0), Reason: strings.Join(problems, "; ")}
}

// route is one entry of a routing table, except what the kernel itself keeps in the local table for own addresses.
type route struct {
	dst, via   string // "198.18.0.1/32", ""
	dev, table uint32
}

func (r route) word() string {
	via := r.via
	if via == "" {
		via = "-"
	}
	return fmt.Sprintf("%s,via:%s,dev:%d,table:%d", r.dst, via, r.dev, r.table)
}

const (
	rtaTable = 15
	rtaVia   = 18
)

func parseRoutes(raw []byte) ([]route, error) {
	messages, err := syscall.ParseNetlinkMessage(raw)
	if err != nil {
		return nil, err
	}
	list := []route{}
	for _, m := range messages {
		if m.Header.Type != syscall.RTM_NEWROUTE || len(m.Data) < syscall.SizeofRtMsg {
			continue
		}
		attrs, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			return nil, err
		}
		r, ownAddress := newRoute(m.Data, attrs)
		if !ownAddress {
			list = append(list, r)
		}
	}
	return list, nil
}

// newRoute decodes a struct rtmsg (family, dst_len, src_len, tos, table, protocol, scope, type) and its attributes.
func newRoute(msg []byte, attrs []syscall.NetlinkRouteAttr) (r route, ownAddress bool) {
	family, length, kind := msg[0], msg[1], msg[7]
	r.table = uint32(msg[4])
	r.dst = fmt.Sprintf("0.0.0.0/%d", length)
	if family == syscall.AF_INET6 {
		r.dst = fmt.Sprintf("::/%d", length)
	}
	for _, a := range attrs {
		switch a.Attr.Type {
		case syscall.RTA_DST:
			if ip, ok := netip.AddrFromSlice(a.Value); ok {
				r.dst = fmt.Sprintf("%s/%d", ip, length)
			}
		case syscall.RTA_GATEWAY:
			if ip, ok := netip.AddrFromSlice(a.Value); ok {
				r.via = ip.String()
			}
		case rtaVia, syscall.RTA_MULTIPATH:
			r.via = "other"
		case syscall.RTA_OIF:
			r.dev = nativeUint32(a.Value)
		case rtaTable:
			r.table = nativeUint32(a.Value)
		}
	}
	own := kind == syscall.RTN_LOCAL || kind == syscall.RTN_BROADCAST || kind == syscall.RTN_MULTICAST
	return r, own && r.table == syscall.RT_TABLE_LOCAL
}

func probeNoIPv6(context.Context, *inside) Check {
	text, err := os.ReadFile("/proc/net/if_inet6")
	if os.IsNotExist(err) {
		return Check{ID: "no-ipv6", Got: "addresses=0", Verdict: pass, Reason: "this kernel has no IPv6"}
	}
	if err != nil {
		return Check{ID: "no-ipv6", Verdict: inconclusive, Reason: err.Error()}
	}
	n := len(strings.Fields(string(text))) / 6
	return Check{ID: "no-ipv6", Got: fmt.Sprintf("addresses=%d", n), Verdict: verdictIf(n == 0)}
}

// dialWord connects and hangs up; the answer is one word.
func dialWord(ctx context.Context, network, addr string) string {
	ctx, cancel := context.WithTimeout(ctx, dialBound)
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
		case v == inconclusive && c.Verdict == pass:
			c.Verdict, c.Reason = inconclusive, w
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

// dnsQuery asks for localhost's address: a resolver answers that by itself, at once, and forwards nothing.
var dnsQuery = []byte{0xa5, 0xf0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 9, 'l', 'o', 'c', 'a', 'l', 'h', 'o', 's', 't', 0, 0, 1, 0, 1}

func probeDNS(ctx context.Context, in *inside) Check {
	words := eachAddress(in.plan.Probes.DNS, []string{"udp", "tcp"}, func(addr, kind string) string {
		return dnsWord(ctx, kind, addr)
	})
	return judgeWords("dns-silent", words, func(_, _, word string) string {
		switch {
		case word == "answered", word == "connected":
			return fail
		case localTrouble[word]:
			return inconclusive
		}
		return pass
	})
}

// dnsWord sends one query and waits dnsSilence for any answer.
func dnsWord(ctx context.Context, network, addr string) string {
	ctx, cancel := context.WithTimeout(ctx, dialBound)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return errorWord(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(dnsSilence))
	query := dnsQuery
	if network == "tcp" {
		query = append([]byte{0, byte(len(dnsQuery))}, dnsQuery...)
	}
	if _, err := c.Write(query); err != nil {
		return errorWord(err)
	}
	n, err := c.Read(make([]byte, 512))
	switch {
	case n > 0:
		return "answered"
	case network == "tcp":
		return "connected" // something listens, whatever it does with the query
	case errorWord(err) == "timeout":
		return "silent"
	}
	return errorWord(err)
}
