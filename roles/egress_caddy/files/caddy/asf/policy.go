// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"errors"
	"fmt"
	"net/netip"
)

const (
	tlsRequired = "required"
	tlsAny      = "any"
)

// Rule is one declared name, as the plan renders it.
type Rule struct {
	// Name is the exact host name, in canonical form.
	Name string `json:"name"`
	// Ports that may be asked for; empty means 443.
	Ports []uint16 `json:"ports,omitempty"`
	// TLS is "required" (default: the ClientHello's server name must be Name) or "any" (no look at the bytes).
	TLS string `json:"tls,omitempty"`
	// Private are the only special-range CIDRs that Name may resolve to.
	Private []string `json:"private,omitempty"`
	// Key is the manifest key that declared the name, for refusals.
	Key string `json:"key,omitempty"`
}

type rule struct {
	name    string
	ports   map[uint16]bool
	anyTLS  bool
	private []netip.Prefix
	key     string
}

// policy is the complete list: what is not in it is refused.
type policy struct {
	rules map[string]*rule
	deny  []netip.Prefix
	key   string // the manifest key of the list itself
}

func compilePolicy(rules []Rule, deny []string, key string) (*policy, error) {
	p := &policy{rules: make(map[string]*rule, len(rules)), key: key}
	var err error
	if p.deny, err = parsePrefixes("deny_cidrs", deny); err != nil {
		return nil, err
	}
	for i := range rules {
		r, err := rules[i].compile()
		if err != nil {
			return nil, fmt.Errorf("policy[%d]: %w", i, err)
		}
		if p.rules[r.name] != nil {
			return nil, fmt.Errorf("policy[%d]: name %q is declared twice", i, r.name)
		}
		p.rules[r.name] = r
	}
	return p, nil
}

func (r *Rule) compile() (*rule, error) {
	name, why := canonicalName(r.Name)
	if why != "" || name != r.Name {
		return nil, fmt.Errorf("name %q is not a canonical host name %s", r.Name, why)
	}
	out := &rule{name: name, ports: map[uint16]bool{}, key: r.Key}
	switch r.TLS {
	case "", tlsRequired:
	case tlsAny:
		out.anyTLS = true
	default:
		return nil, fmt.Errorf("tls %q: use %q or %q", r.TLS, tlsRequired, tlsAny)
	}
	for _, port := range r.Ports {
		if port == 0 {
			return nil, errors.New("ports: 0 is not a port")
		}
		out.ports[port] = true
	}
	if len(r.Ports) == 0 {
		out.ports[443] = true
	}
	var err error
	out.private, err = parsePrefixes("private", r.Private)
	return out, err
}

// judge decides by name and port alone: no DNS query, no clock, no state.
func (p *policy) judge(a authority) (*rule, *refusal) {
	r := p.rules[a.name]
	if r == nil {
		return nil, refuse(reasonDeniedName, "not-declared").at(p.key,
			fmt.Sprintf("add %q to %s in the manifest, then open the session again, also while it lives", a.name, p.key))
	}
	if !r.ports[a.port] {
		return nil, refuse(reasonDeniedPort, "not-declared").at(r.key+".ports",
			fmt.Sprintf("declare port %d in the map form of %s, then open the session again, also while it lives", a.port, r.key))
	}
	return r, nil
}
