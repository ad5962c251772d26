// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"errors"
	"fmt"
)

const (
	modeProxy    = "proxy"
	modeIsolated = "isolated"
	modeRouted   = "routed"
)

// checkMode refuses a plan that would pass because it asks nothing: every mode says what must be asked, and of what.
func (p *Plan) checkMode() error {
	pr := &p.Probes
	cabled := pr.Front != nil || pr.Deny != nil
	switch {
	case p.Mode != modeProxy && p.Mode != modeIsolated && p.Mode != modeRouted:
		return fmt.Errorf("mode: this gate knows no mode %q", p.Mode)
	case len(pr.Unreach) == 0:
		return errors.New("probes.unreach: empty, so nothing would show that there is no other path")
	case p.Mode == modeProxy && pr.Deny == nil:
		return errors.New("probes.deny: missing, and proxy mode is to deny what is not declared")
	case p.Mode == modeProxy && pr.Allow == nil && pr.Front == nil:
		return errors.New("probes.allow: missing, and without a front there is no other control")
	case p.Mode == modeRouted && (pr.Routed == nil || len(pr.Routed.Routes) == 0 || len(pr.Routed.Silent) == 0):
		return errors.New("probes.routed: missing, or without routes or silent ports, and routed mode has both controls")
	case p.Mode != modeRouted && pr.Routed != nil:
		return fmt.Errorf("probes.routed: there is no gateway in mode %s", p.Mode)
	case p.Mode != modeProxy && (pr.Allow != nil || pr.Deny != nil || pr.TLS != nil):
		return fmt.Errorf("probes.allow, deny, tls: there is no forward proxy in mode %s", p.Mode)
	}
	for key, list := range map[string][]string{"reach": pr.Reach, "closed": pr.Closed, "dns": pr.DNS} {
		if cabled != (len(list) > 0) {
			return fmt.Errorf("probes.%s: asked where there is a cable to Caddy, and nowhere else", key)
		}
	}
	return nil
}
