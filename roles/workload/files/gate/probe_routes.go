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
	"syscall"
)

// probeLinks counts links that are up: kernels put tunnel devices, down, into new namespaces by themselves.
func probeLinks(_ context.Context, in *inside) Check {
	links, err := net.Interfaces()
	if err != nil {
		return Check{ID: "net-links", Verdict: inconclusive, Reason: err.Error()}
	}
	names := []string{}
	for _, l := range links {
		if l.Flags&net.FlagUp != 0 {
			names = append(names, l.Name)
		}
	}
	pr, want := &in.plan.Probes, []string{"lo"}
	if len(pr.peers()) > 0 {
		want = append(want, "eth0")
	}
	if pr.Routed != nil {
		want = append(want, "eth1")
	}
	got, planned := strings.Join(names, ","), strings.Join(want, ",")
	return Check{ID: "net-links", Got: "up=" + got, Verdict: verdictIf(got == planned)}
}

// probeRoutes reads every table and both families by netlink: /proc/net/route shows the main table of IPv4 alone.
func probeRoutes(_ context.Context, in *inside) Check {
	raw, err := syscall.NetlinkRIB(syscall.RTM_GETROUTE, syscall.AF_UNSPEC)
	if err != nil {
		return Check{ID: "net-routes", Verdict: inconclusive, Reason: err.Error()}
	}
	routes, own, err := parseRoutes(raw)
	if err != nil {
		return Check{ID: "net-routes", Verdict: inconclusive, Reason: err.Error()}
	}
	planned, got, problems := in.plan.Probes.routes(), []string{}, []string{}
	for _, r := range routes {
		got = append(got, r.word())
		if via, ok := planned[r.dst]; !ok || r.via != via {
			problems = append(problems, r.dst)
		}
	}
	for dst := range planned {
		if !strings.Contains(" "+strings.Join(got, " "), " "+dst+",") {
			problems = append(problems, "missing "+dst)
		}
	}
	if own == 0 { // the kernel keeps some for loopback: without them, nothing was listed at all
		problems = append(problems, "no route to an own address")
	}
	sort.Strings(problems)
	head := []string{fmt.Sprintf("routes=%d", len(got)), fmt.Sprintf("own=%d", own)}
	return Check{ID: "net-routes", Got: strings.Join(append(head, got...), " "),
		Verdict: verdictIf(len(problems) == 0), Reason: strings.Join(problems, "; ")}
}

// routes maps every planned destination to the address that it goes through, "" for the peers of cables.
func (pr *Probes) routes() map[string]string {
	planned := map[string]string{}
	for peer := range pr.peers() {
		planned[peer+"/32"] = ""
	}
	if pr.Routed != nil {
		for _, cidr := range pr.Routed.Routes {
			planned[cidr] = pr.Routed.Via
		}
		planned[pr.Routed.Via+"/32"] = ""
	}
	return planned
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

// parseRoutes returns the routes, and how many entries are of own addresses.
func parseRoutes(raw []byte) (list []route, own int, err error) {
	messages, err := syscall.ParseNetlinkMessage(raw)
	if err != nil {
		return nil, 0, err
	}
	for _, m := range messages {
		if m.Header.Type != syscall.RTM_NEWROUTE || len(m.Data) < syscall.SizeofRtMsg {
			continue
		}
		attrs, err := syscall.ParseNetlinkRouteAttr(&m)
		if err != nil {
			return nil, 0, err
		}
		r, ownAddress := newRoute(m.Data, attrs)
		if ownAddress {
			own++
		} else {
			list = append(list, r)
		}
	}
	return list, own, nil
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
