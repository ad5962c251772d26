// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"context"
	"strings"
	"testing"
)

// proxyProbes is the least that proxy mode must ask.
func proxyProbes() Probes {
	one := []string{"198.18.0.1:3128"}
	target := &ProxyTarget{one[0], "docs.example.com:443"}
	return Probes{Unreach: one, Reach: one, Closed: one, DNS: one, Allow: target, Deny: target}
}

// brokeredProbes is the least that isolated mode must ask where there is a front.
func brokeredProbes() Probes {
	one := []string{"198.18.0.1:4000"}
	return Probes{Unreach: one, Reach: one, Closed: one, DNS: one, Front: &FrontTarget{one[0], "/asf/control"}}
}

// leastRouted is the least that routed mode must ask.
func leastRouted() Probes {
	return Probes{Unreach: []string{"198.51.100.1:443"}, Routed: &Routed{Allowed: "192.0.2.1:22", Blocked: "192.0.2.1:23",
		Routes: []string{"192.0.2.0/24"}, Silent: []string{"198.18.0.9:22"}, Via: "198.18.0.9"}}
}

func TestAPlanThatAsksTooLittleIsRefused(t *testing.T) {
	bare := func() Probes { return Probes{Unreach: []string{"198.51.100.1:443"}} }
	for _, c := range []struct {
		mode   string
		probes func() Probes
		change func(*Probes)
		says   string
	}{
		{modeProxy, proxyProbes, func(*Probes) {}, ""},
		{modeProxy, proxyProbes, func(p *Probes) { p.TLS = &TLSTarget{} }, ""},
		{modeIsolated, bare, func(*Probes) {}, ""},
		{modeIsolated, brokeredProbes, func(*Probes) {}, ""},
		{modeRouted, leastRouted, func(*Probes) {}, ""},
		{modeRouted, bare, func(*Probes) {}, "probes.routed"},
		{modeRouted, leastRouted, func(p *Probes) { p.Routed.Routes = nil }, "probes.routed"},
		{modeRouted, leastRouted, func(p *Probes) { p.Routed.Silent = nil }, "probes.routed"},
		{modeRouted, leastRouted, func(p *Probes) { p.Reach = []string{"198.18.0.9:22"} }, "probes.reach"},
		{modeIsolated, leastRouted, func(*Probes) {}, "no gateway"},
		{"", proxyProbes, func(*Probes) {}, "mode"},
		{"open", bare, func(*Probes) {}, "mode"},
		{modeProxy, proxyProbes, func(p *Probes) { p.Unreach = nil }, "probes.unreach"},
		{modeProxy, proxyProbes, func(p *Probes) { p.Deny = nil }, "probes.deny"},
		{modeProxy, proxyProbes, func(p *Probes) { p.Allow = nil }, "probes.allow"},
		{modeProxy, proxyProbes, func(p *Probes) { p.Reach = nil }, "probes.reach"},
		{modeProxy, bare, func(*Probes) {}, "probes.deny"},
		{modeIsolated, bare, func(p *Probes) { p.Unreach = nil }, "probes.unreach"},
		{modeIsolated, bare, func(p *Probes) { p.Reach = []string{"198.18.0.1:3128"} }, "probes.reach"},
		{modeIsolated, proxyProbes, func(*Probes) {}, "no forward proxy"},
		{modeIsolated, brokeredProbes, func(p *Probes) { p.TLS = &TLSTarget{} }, "no forward proxy"},
		{modeIsolated, brokeredProbes, func(p *Probes) { p.Reach = nil }, "probes.reach"},
		{modeIsolated, brokeredProbes, func(p *Probes) { p.Closed = nil }, "probes.closed"},
		{modeIsolated, brokeredProbes, func(p *Probes) { p.DNS = nil }, "probes.dns"},
	} {
		plan := &Plan{Mode: c.mode, Probes: c.probes()}
		c.change(&plan.Probes)
		err := plan.checkMode()
		if (c.says == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s %+v: %v", c.mode, plan.Probes, err)
		}
	}
}

func TestLoopbackIsSeen(t *testing.T) {
	if c := probeLoopback(context.Background(), nil); c.Verdict != pass || c.Got != loopbackWorks {
		t.Errorf("%+v", c)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if c := probeLoopback(ended, nil); c.Verdict != inconclusive || c.Reason == "" {
		t.Errorf("%+v", c)
	}
}
