// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// lookupFunc resolves one name to addresses of one network, "ip4" or "ip" (both families).
type lookupFunc func(ctx context.Context, network, name string) ([]netip.Addr, error)

// newLookup returns the proxy's resolver. With an address, every query goes there and resolv.conf's servers are not
// used (case N2: explicit, never a silent default); without, the container's resolv.conf counts. PreferGo keeps libc
// and its plug-ins out.
func newLookup(resolver string) (lookupFunc, error) {
	r := &net.Resolver{PreferGo: true}
	if resolver != "" {
		server, err := resolverAddress(resolver)
		if err != nil {
			return nil, err
		}
		var d net.Dialer
		r.Dial = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return d.DialContext(ctx, network, server)
		}
	}
	return r.LookupNetIP, nil
}

// resolverAddress accepts IP or IP:port; a name would need a resolver to find the resolver.
func resolverAddress(s string) (string, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		return netip.AddrPortFrom(a, 53).String(), nil
	}
	ap, err := netip.ParseAddrPort(s)
	if err != nil || ap.Port() == 0 {
		return "", fmt.Errorf("resolver: %q is neither IP nor IP:port", s)
	}
	return ap.String(), nil
}

// resolve looks a declared name up. The final dot makes it absolute: search domains are never tried, and a name that
// does not exist asks for nothing else. IPv6 is asked only for a name without IPv4, as a session has no IPv6 way out;
// then in both families, because "ip6" would hide IPv4 in IPv6 form instead of letting it be judged.
func (f lookupFunc) resolve(ctx context.Context, name string) ([]netip.Addr, *refusal) {
	addrs, err := f(ctx, "ip4", name+".")
	if notFound(err) {
		addrs, err = f(ctx, "ip", name+".")
	}
	if err != nil {
		return nil, dnsRefusal(ctx, err)
	}
	if len(addrs) == 0 {
		return nil, refuse(reasonDNSNotFound, "no address")
	}
	return addrs, nil
}

func notFound(err error) bool {
	var dns *net.DNSError
	return errors.As(err, &dns) && dns.IsNotFound
}

func dnsRefusal(ctx context.Context, err error) *refusal {
	var dns *net.DNSError
	switch {
	case notFound(err):
		return refuse(reasonDNSNotFound, "the resolver knows no address for this name")
	case errors.Is(ctx.Err(), context.DeadlineExceeded), errors.As(err, &dns) && dns.IsTimeout:
		return refuse(reasonDNSTimeout, "the resolver did not answer in time")
	}
	return refuse(reasonDNSFailure, "the resolver answered with an error")
}
