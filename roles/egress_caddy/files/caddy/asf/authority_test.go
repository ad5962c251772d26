// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"net/netip"
	"strings"
	"testing"
)

// TestParseAuthority is cases P5, P6 and P7 for the parser alone: what is not one canonical name and port is refused.
func TestParseAuthority(t *testing.T) {
	long := strings.Repeat("a.", 126) + "a" // 253 bytes
	for raw, want := range map[string]authority{
		"docs.example.com:443":  {"docs.example.com", 443},
		"DOCS.Example.COM:443":  {"docs.example.com", 443},
		"docs.example.com.:443": {"docs.example.com", 443},
		"localhost:1":           {"localhost", 1},
		"xn--bcher-kva.de:8443": {"xn--bcher-kva.de", 8443},
		"1.2.3.example:65535":   {"1.2.3.example", 65535},
		"0x7f.example:80":       {"0x7f.example", 80},
		"1e100.net:443":         {"1e100.net", 443},
		"a--b.test:443":         {"a--b.test", 443},
		long + ":443":           {long, 443},
		long + ".:65535":        {long, 65535},
	} {
		if got, no := parseAuthority(raw); no != nil || got != want {
			t.Errorf("%q: %+v %+v", raw, got, no)
		}
	}
	for raw, want := range refusedAuthorities() {
		got, no := parseAuthority(raw)
		if no == nil || no.reason+" "+no.detail != want || got != (authority{}) {
			t.Errorf("%q: %+v %+v, want %s", raw, got, no, want)
		}
	}
}

func refusedAuthorities() map[string]string {
	out := map[string]string{}
	for want, raws := range map[string][]string{
		"denied-name ip-literal": {
			"127.1:443", "127.0.0.1:443", "0x7f.1:443", "0X7F.1:443", "2130706433:443", "0x7f000001:443", "017700000001:443",
			"0x:443", "1.2.3.4.:443", "a.1:443", "a.0x1f:443", "[::1]:443", "[::ffff:10.0.0.1]:443", "[fe80::1%25eth0]:443",
			"[docs.example.com]:443", "::1:443", "a:b:443", "docs%2eexample.com:443", "u:p@a.test:443", "0:443", "[]:443",
		},
		"denied-name bad-char": {
			"a\x00.test:443", "a\r.test:443", "a\n.test:443", "a\t.test:443", "a .test:443", " a.test:443", "a.test :443",
			"e@a.test:443", "a_b.test:443", "a/b.test:443", "a\\b.test:443", "a\uff0etest:443", "d\u00f6cs.test:443", "a,b.test:443",
			"*.test:443", "a.test\x7f:443", "http//a.test:443", "a\u3002test:443", "\u212aelvin.test:443", "a?b.test:443", "a#b.test:443",
		},
		"denied-name bad-label": {
			".a.test:443", "a..test:443", "a.test..:443", "-a.test:443", "a-.test:443", "a.-:443", strings.Repeat("a", 64) + ".test:443",
		},
		"denied-name bad-length": {":443", strings.Repeat("a", 254) + ":1"},
		"denied-name too-long":   {strings.Repeat("a.", 200) + "test:443", strings.Repeat("a", 255) + ":65535", strings.Repeat(":", 9000)},
		"denied-port no-port":    {"a.test", "", "127.0.0.1", "[a"},
		"denied-port bad-port": {
			"a.test:", "a.test:0", "a.test:0443", "a.test:00443", "a.test:65536", "a.test:99999", "a.test:100000", "a.test:65979",
			"a.test:+443", "a.test:-443", "a.test: 443", "a.test:443 ", "a.test:44\x003", "a.test:0x1bb", "a.test:443/x", "a.test:https",
			"a.test:\uff14\uff14\uff13", "a.test:4_43", "a.test:4e2",
		},
	} {
		for _, raw := range raws {
			out[raw] = want
		}
	}
	return out
}

// FuzzParseAuthority: no input panics; what is accepted is canonical, is no address in any spelling that Go knows, and
// has one spelling: rendering and parsing it again gives the same.
func FuzzParseAuthority(f *testing.F) {
	for raw := range refusedAuthorities() {
		f.Add(raw)
	}
	f.Add("docs.example.com:443")
	f.Add("DOCS.example.COM.:65535")
	f.Fuzz(func(t *testing.T, raw string) {
		a, no := parseAuthority(raw)
		if no != nil {
			if no.reason != reasonDeniedName && no.reason != reasonDeniedPort {
				t.Errorf("%q: reason %s", raw, no.reason)
			}
			return
		}
		again, no := parseAuthority(a.name + ":" + portText(a.port))
		if no != nil || again != a {
			t.Errorf("%q: %+v is not canonical: %+v %+v", raw, a, again, no)
		}
		if a.name != strings.ToLower(a.name) || strings.Trim(a.name, "abcdefghijklmnopqrstuvwxyz0123456789-.") != "" || len(a.name) > maxName {
			t.Errorf("%q: name %q", raw, a.name)
		}
		if _, err := netip.ParseAddr(a.name); err == nil || a.port == 0 {
			t.Errorf("%q: %+v is an address", raw, a)
		}
		if !strings.EqualFold(strings.TrimSuffix(raw[:strings.LastIndexByte(raw, ':')], "."), a.name) {
			t.Errorf("%q became %q", raw, a.name)
		}
	})
}

func portText(p uint16) string {
	return strings.TrimPrefix(netip.AddrPortFrom(netip.AddrFrom4([4]byte{}), p).String(), "0.0.0.0:")
}
