// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"fmt"
	"net/netip"
)

// special4 are the IPv4 blocks that are not ordinary unicast destinations of the public internet: IANA's IPv4
// Special-Purpose Address Registry (RFC 6890 and its updates), multicast (RFC 5771), and one address outside it.
var special4 = prefixes(
	"0.0.0.0/8",        // this network, RFC 791
	"10.0.0.0/8",       // private, RFC 1918
	"100.64.0.0/10",    // shared address space, RFC 6598
	"127.0.0.0/8",      // loopback, RFC 1122
	"169.254.0.0/16",   // link local, RFC 3927; most clouds' metadata service
	"172.16.0.0/12",    // private, RFC 1918
	"192.0.0.0/24",     // IETF protocol assignments, RFC 6890
	"192.0.2.0/24",     // documentation, RFC 5737
	"192.31.196.0/24",  // AS112, RFC 7535
	"192.52.193.0/24",  // AMT, RFC 7450
	"192.88.99.0/24",   // deprecated 6to4 relay anycast, RFC 7526
	"192.168.0.0/16",   // private, RFC 1918
	"192.175.48.0/24",  // AS112, RFC 7534
	"198.18.0.0/15",    // benchmarking, RFC 2544; the sandbox's own cables
	"198.51.100.0/24",  // documentation, RFC 5737
	"203.0.113.0/24",   // documentation, RFC 5737
	"224.0.0.0/4",      // multicast, RFC 5771
	"240.0.0.0/4",      // reserved and limited broadcast, RFC 1112 and 919
	"168.63.129.16/32", // Azure's platform channel: public by number, the host's by meaning
)

// unicast6 is the only IPv6 block that is global unicast today (IANA IPv6 Global Unicast Address Assignments). What
// lies outside is special by default: ::/128, ::1, ::/96, 64:ff9b::/96, 100::/64, fc00::/7, fe80::/10, ff00::/8, …
var unicast6 = netip.MustParsePrefix("2000::/3")

// special6 are the carve-outs of unicast6 (IANA IPv6 Special-Purpose Address Registry).
var special6 = prefixes(
	"2001::/23",         // IETF protocol assignments, Teredo (RFC 4380) and ORCHIDv2 (RFC 7343) included
	"2001:db8::/32",     // documentation, RFC 3849
	"2002::/16",         // 6to4, RFC 3056
	"2620:4f:8000::/48", // AS112, RFC 7534
	"3ffe::/16",         // former 6bone, RFC 3701
	"3fff::/20",         // documentation, RFC 9637
)

// carriers are IPv6 blocks whose addresses name an IPv4 destination: offset is where its four bytes begin.
var carriers = []struct {
	prefix netip.Prefix
	offset int
}{
	{netip.MustParsePrefix("::/96"), 12},          // IPv4-compatible, RFC 4291 section 2.5.5.1
	{netip.MustParsePrefix("64:ff9b::/96"), 12},   // NAT64, RFC 6052
	{netip.MustParsePrefix("64:ff9b:1::/48"), 12}, // local-use NAT64, RFC 8215 (with a /96 inside)
	{netip.MustParsePrefix("2002::/16"), 2},       // 6to4, RFC 3056
}

// prefixes parses the constant tables above; a typo stops the program at start, before it serves anything.
func prefixes(texts ...string) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(texts))
	for _, t := range texts {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

// parsePrefixes reads CIDRs of the configuration. A host part is dropped; an IPv4-mapped form is refused, because an
// address is unmapped before it is compared and such a prefix would match nothing.
func parsePrefixes(key string, texts []string) ([]netip.Prefix, error) {
	out := make([]netip.Prefix, 0, len(texts))
	for i, t := range texts {
		p, err := netip.ParsePrefix(t)
		if err != nil {
			return nil, fmt.Errorf("%s[%d]: %q is not a CIDR", key, i, t)
		}
		if p.Addr().Is4In6() {
			return nil, fmt.Errorf("%s[%d]: %q: write it as an IPv4 CIDR", key, i, t)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

func within(a netip.Addr, list []netip.Prefix) (netip.Prefix, bool) {
	for _, p := range list {
		if p.Contains(a) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// embedded4 returns the IPv4 destination that an IPv6 address stands for.
func embedded4(a netip.Addr) (netip.Addr, bool) {
	if !a.Is6() || a.Is4In6() {
		return netip.Addr{}, false
	}
	b := a.As16()
	for _, c := range carriers {
		if c.prefix.Contains(a) {
			return netip.AddrFrom4([4]byte(b[c.offset : c.offset+4])), true
		}
	}
	return netip.Addr{}, false
}

// specialRange names the block that makes an address special, or "" for an ordinary public one.
func specialRange(a netip.Addr) string {
	if a.Is4() {
		if p, ok := within(a, special4); ok {
			return p.String()
		}
		return ""
	}
	if !unicast6.Contains(a) {
		return "outside " + unicast6.String()
	}
	if p, ok := within(a, special6); ok {
		return p.String()
	}
	return ""
}

// barred explains why an address is not dialled. hard is true when no manifest key could open it.
type barred struct {
	addr  netip.Addr
	block string
	hard  bool
}

func (b *barred) String() string {
	return b.addr.String() + " in " + b.block
}

// checkAddress returns the address to dial, IPv4-mapped forms unmapped, or why it is barred. deny wins over
// everything; private names the only special-range addresses that may be used. An IPv6 address that carries an
// IPv4 destination passes only if that destination passes too.
func checkAddress(a netip.Addr, private, deny []netip.Prefix) (netip.Addr, *barred) {
	if !a.IsValid() || a.Zone() != "" {
		return a, &barred{a, "no zone may be named", true}
	}
	a = a.Unmap()
	if p, ok := within(a, deny); ok {
		return a, &barred{a, p.String(), true}
	}
	if inner, ok := embedded4(a); ok {
		if _, no := checkAddress(inner, private, deny); no != nil {
			return a, &barred{a, "embedded " + no.String(), no.hard}
		}
	}
	block := specialRange(a)
	if block == "" {
		return a, nil
	}
	if _, ok := within(a, private); ok {
		return a, nil
	}
	return a, &barred{a, block, false}
}
