// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"net/netip"
	"strings"
	"testing"
)

// TestSpecialRanges is case P4: one address of each block that no name may resolve to, and public ones beside them.
func TestSpecialRanges(t *testing.T) {
	for _, s := range strings.Fields(`
		0.0.0.0 0.1.2.3 10.0.0.1 10.255.255.255 100.64.0.1 100.127.255.255 127.0.0.1 127.255.255.254 169.254.169.254
		172.16.0.1 172.31.255.255 192.0.0.1 192.0.2.1 192.31.196.1 192.52.193.1 192.88.99.1 192.168.0.1 192.175.48.1
		198.18.0.1 198.19.255.255 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255 168.63.129.16
		:: ::1 ::7f00:1 ::ffff:10.0.0.1 ::ffff:127.0.0.1 ::ffff:169.254.169.254 64:ff9b::a00:1 64:ff9b::808:808 64:ff9b:1::a00:1
		100::1 2001::1 2001:2::1 2001:10::1 2001:20::1 2001:db8::1 2002:a00:1::1 2002:808:808::1 2620:4f:8000::1
		3ffe::1 3fff::1 3fff:fff::1 5f00::1 fc00::1 fd00:ec2::254 fe80::1 fec0::1 ff02::1 4000::1 1fff::1`) {
		if _, no := checkAddress(netip.MustParseAddr(s), nil, nil); no == nil || no.block == "" || no.hard {
			t.Errorf("%s: %+v", s, no)
		}
	}
	if _, no := checkAddress(netip.Addr{}, nil, nil); no == nil {
		t.Error("no address at all passes")
	}
	for _, s := range strings.Fields(`
		1.1.1.1 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.1 169.253.255.255 169.255.0.0
		172.15.255.255 172.32.0.0 192.0.1.1 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 223.255.255.255
		168.63.129.15 2606:4700::1111 2a00::1 2001:200::1 3fff:1000::1 2003::1 2620:4f:8001::1`) {
		if got, no := checkAddress(netip.MustParseAddr(s), nil, nil); no != nil || got != netip.MustParseAddr(s) {
			t.Errorf("%s: %v %+v", s, got, no)
		}
	}
}

func cidrs(t *testing.T, text string) []netip.Prefix {
	t.Helper()
	p, err := parsePrefixes("test", strings.Fields(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestCheckAddress: private opens exactly what it names, deny wins over it, and IPv6 forms cannot go around either.
func TestCheckAddress(t *testing.T) {
	const open, soft, hard = 0, 1, 2
	for _, c := range []struct {
		addr, private, deny string
		want                int
	}{
		{"10.1.2.3", "10.1.2.3/32", "", open},
		{"10.1.2.4", "10.1.2.3/32", "", soft},
		{"10.1.2.3", "10.0.0.0/8", "10.1.2.3/32", hard},
		{"198.18.0.5", "198.18.0.0/15", "198.18.0.0/24", hard},
		{"8.8.8.8", "", "8.8.8.8/32", hard}, // the host's own public address
		{"::ffff:10.1.2.3", "10.1.2.3/32", "", open},
		{"::ffff:10.1.2.3", "", "", soft},
		{"::ffff:8.8.8.8", "", "8.8.8.8/32", hard},
		{"64:ff9b::808:808", "64:ff9b::/96", "", open},
		{"64:ff9b::a00:1", "64:ff9b::/96", "", soft}, // NAT64 of 10.0.0.1
		{"64:ff9b::808:808", "64:ff9b::/96", "8.8.8.8/32", hard},
		{"2002:a00:1::1", "2002::/16", "", soft},
		{"2002:808:808::1", "2002::/16", "8.8.8.8/32", hard},
		{"::a00:1", "::/96", "", soft},
		{"64:ff9b:1::7f00:1", "64:ff9b:1::/48", "", soft},
		{"fd00::1", "fd00::/8", "", open},
		{"fd00::1", "", "fd00::/8", hard},
		{"fe80::1%eth0", "fe80::/10", "", hard},
		{"127.0.0.1", "127.0.0.0/8", "", open},
	} {
		_, no := checkAddress(netip.MustParseAddr(c.addr), cidrs(t, c.private), cidrs(t, c.deny))
		got := open
		if no != nil && no.hard {
			got = hard
		} else if no != nil {
			got = soft
		}
		if got != c.want {
			t.Errorf("%+v: %d %v", c, got, no)
		}
	}
}

// TestControl is the last check before connect(2): only the address that was judged.
func TestControl(t *testing.T) {
	control := controlFor(netip.MustParseAddrPort("192.0.2.1:443"))
	for address, ok := range map[string]bool{
		"192.0.2.1:443": true, "192.0.2.2:443": false, "192.0.2.1:80": false, "[::ffff:192.0.2.1]:443": false, "x": false,
	} {
		if err := control("tcp4", address, nil); (err == nil) != ok {
			t.Errorf("%s: %v", address, err)
		}
	}
}

// TestSift: the resolver's order stays, and a huge answer is not tried through.
func TestSift(t *testing.T) {
	var many []netip.Addr
	for i := range 50 {
		many = append(many, netip.AddrFrom4([4]byte{9, 9, 9, byte(i)}))
	}
	usable, bad := sift(append([]netip.Addr{netip.MustParseAddr("10.0.0.1")}, many...), nil, nil)
	if len(usable) != maxAddresses-1 || usable[0] != many[0] || len(bad) != 1 {
		t.Errorf("%d usable, %d barred", len(usable), len(bad))
	}
}
