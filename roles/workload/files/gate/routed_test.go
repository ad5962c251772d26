// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"context"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

func routedPlan(r Routed) *inside {
	return &inside{plan: &Plan{Probes: Probes{Routed: &r}}}
}

// L6: only a connection shows that the control is allowed, and only the lack of one that the other port is not.
func TestRoutedControls(t *testing.T) {
	open, shut := answering(t, func(string) string { return "" }), refusing(t)
	for _, c := range []struct{ addr, allow, block string }{{open, pass, fail}, {shut, inconclusive, pass}} {
		in := routedPlan(Routed{Allowed: c.addr, Blocked: c.addr})
		allow, block := probeRoutedAllow(context.Background(), in), probeRoutedBlock(context.Background(), in)
		if allow.Verdict != c.allow || block.Verdict != c.block || !strings.HasPrefix(block.Got, c.addr+"/tcp=") {
			t.Errorf("%+v %+v", allow, block)
		}
	}
}

func TestRoutedBlockWithoutARouteIsInconclusive(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	in := routedPlan(Routed{Blocked: "192.0.2.1:9", UDP: []string{"192.0.2.1:9"}, ICMP: []string{"192.0.2.1"}})
	for _, c := range []Check{probeRoutedBlock(context.Background(), in), probeRoutedUDP(context.Background(), in),
		probeRoutedICMP(context.Background(), in)} {
		if c.Verdict != inconclusive {
			t.Errorf("%+v", c)
		}
	}
}

// Silence is a warning, never a pass; a closed port's refusal shows that the datagram got there.
func TestRoutedDatagrams(t *testing.T) {
	echo, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go func() {
		b := make([]byte, 512)
		for {
			n, from, err := echo.ReadFrom(b)
			if err != nil {
				return
			}
			echo.WriteTo(b[:n], from)
		}
	}()
	silent, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for _, c := range []struct{ addr, word, verdict string }{
		{echo.LocalAddr().String(), "answered", pass},
		{silent.LocalAddr().String(), "silent", warn},
		{refusing(t), "ECONNREFUSED", pass},
	} {
		got := probeRoutedUDP(context.Background(), routedPlan(Routed{UDP: []string{c.addr}}))
		if got.Verdict != c.verdict || got.Got != c.addr+"/udp="+c.word {
			t.Errorf("%+v: %+v", c, got)
		}
	}
}

func TestRoutedEcho(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	ip(t, "link", "set", "lo", "up")
	if err := os.WriteFile("/proc/sys/net/ipv4/ping_group_range", []byte("0 0"), 0o644); err != nil {
		t.Skipf("the kernel does not give ICMP sockets here: %v", err)
	}
	got := probeRoutedICMP(context.Background(), routedPlan(Routed{ICMP: []string{"127.0.0.1"}}))
	if got.Verdict != pass || got.Got != "127.0.0.1/icmp=answered" {
		t.Errorf("%+v", got)
	}
	ip(t, "link", "add", "cable0", "type", "veth", "peer", "name", "cable1")
	ip(t, "addr", "add", "192.0.2.1/32", "peer", "192.0.2.2", "dev", "cable0")
	ip(t, "link", "set", "cable0", "up")
	ip(t, "link", "set", "cable1", "up") // takes what arrives, and answers no ARP for an address that it has not
	ip(t, "neigh", "add", "192.0.2.2", "lladdr", "02:00:00:00:00:02", "nud", "permanent", "dev", "cable0")
	got = probeRoutedICMP(context.Background(), routedPlan(Routed{ICMP: []string{"192.0.2.2"}}))
	if got.Verdict != warn || got.Got != "192.0.2.2/icmp=silent" {
		t.Errorf("%+v", got)
	}
}

// The gateway must not even refuse.
func TestGatewaySilent(t *testing.T) {
	silent, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for _, addr := range []string{refusing(t), answering(t, func(string) string { return "" }), silent.LocalAddr().String()} {
		if c := probeGatewaySilent(context.Background(), routedPlan(Routed{Silent: []string{addr}})); c.Verdict != fail {
			t.Errorf("%s: %+v", addr, c)
		}
	}
	if c := judgeWords("gateway-silent", []string{"a/tcp=timeout", "a/udp=silent"}, silentVerdict); c.Verdict != pass {
		t.Errorf("%+v", c)
	}
	if c := judgeWords("gateway-silent", []string{"a/tcp=ENETUNREACH"}, silentVerdict); c.Verdict != inconclusive {
		t.Errorf("%+v", c)
	}
}

func TestRoutedPlanIsChecked(t *testing.T) {
	good := Routed{Allowed: "192.0.2.1:22", Blocked: "192.0.2.1:23", Via: "198.18.0.9", Routes: []string{"192.0.2.0/24"}}
	if err := good.check(); err != nil {
		t.Error(err)
	}
	for _, edit := range []func(*Routed){
		func(r *Routed) { r.Allowed = "example.com:22" },
		func(r *Routed) { r.Blocked = "" },
		func(r *Routed) { r.UDP = []string{"[2001:db8::1]:53"} },
		func(r *Routed) { r.ICMP = []string{"192.0.2.1:0"} },
		func(r *Routed) { r.Via = "" },
		func(r *Routed) { r.Routes = []string{"0.0.0.0/0"} },
		func(r *Routed) { r.Silent = []string{"198.18.0.9"} },
	} {
		bad := good
		edit(&bad)
		if bad.check() == nil {
			t.Errorf("accepted: %+v", bad)
		}
	}
}

func TestRoutesOfBothCables(t *testing.T) {
	pr := Probes{Reach: []string{"198.18.0.1:4000"}, Routed: &Routed{Routes: []string{"192.0.2.0/24"}, Via: "198.18.0.9"}}
	got := pr.routes()
	if len(got) != 3 || got["198.18.0.1/32"] != "" || got["198.18.0.9/32"] != "" || got["192.0.2.0/24"] != "198.18.0.9" {
		t.Errorf("%v", got)
	}
}

// The gateway's PID 1 starts nothing, outlives whoever its cable led to, and ends when it is told to.
func TestHold(t *testing.T) {
	for _, bad := range [][]string{{}, {""}, {"gateway", "--while", "agent0"}, {"gateway", "--", "c"}, {"--while"}} {
		if out, err := gate(append([]string{"hold"}, bad...)...).CombinedOutput(); err == nil || !strings.Contains(string(out), "usage:") {
			t.Errorf("%v: %v %s", bad, err, out)
		}
	}
	if !inOwnNetwork(t) {
		return
	}
	out, ended, gone := &lines{}, make(chan int, 1), plugged(t, "agent0")
	s := &supervisor{name: "gateway", out: out, signals: watchSignals()}
	go func() { ended <- s.hold() }()
	out.await(t, "start", 1)
	ip(t, "link", "del", "agent0")
	<-gone // whoever watches the cable knows by now
	select {
	case code := <-ended:
		t.Fatalf("it went with its cable: exit %d", code)
	default:
	}
	s.signals.others <- syscall.SIGTERM
	select {
	case code := <-ended:
		if found := out.events(t); code != 0 || len(found) != 3 || found[1].Event != "stop" {
			t.Errorf("exit %d, %+v", code, found)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("it goes on")
	}
}
