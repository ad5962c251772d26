// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"strconv"
	"strings"
)

const (
	maxName  = 253 // RFC 1035 section 2.3.4, in text form without the final dot
	maxLabel = 63
	maxPort  = 5 // digits
)

// authority is the one canonical form of a CONNECT target: what is matched, resolved, compared with the server name
// and logged is this value and no other spelling.
type authority struct {
	name string // lower-case LDH labels, no final dot, never an IP literal
	port uint16
}

// parseAuthority reads the raw request target of a CONNECT (RFC 9110 section 9.3.6: host and port, both required).
// It must be given the bytes of the request line: net/http's parsed host has already lost userinfo, path and leading
// zeros of the port. On refusal the reason is denied-port or denied-name, and detail says which rule was broken.
func parseAuthority(raw string) (authority, *refusal) {
	if len(raw) > maxName+len(".:")+maxPort {
		return authority{}, refuse(reasonDeniedName, "too-long")
	}
	colon := strings.LastIndexByte(raw, ':')
	if colon < 0 {
		return authority{}, refuse(reasonDeniedPort, "no-port")
	}
	name, why := canonicalName(raw[:colon])
	if why != "" {
		return authority{}, refuse(reasonDeniedName, why)
	}
	port, ok := parsePort(raw[colon+1:])
	if !ok {
		return authority{}, refuse(reasonDeniedPort, "bad-port")
	}
	return authority{name: name, port: port}, nil
}

// parsePort accepts 1 to 65535 in decimal without sign, blank or leading zero, so that a port has one spelling.
func parsePort(s string) (uint16, bool) {
	if s == "" || len(s) > maxPort || s[0] == '0' || strings.Trim(s, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil
}

// canonicalName lower-cases ASCII and drops one final dot (the absolute form of the same name). It returns the rule
// that was broken, or "". Only letters, digits and hyphens are names here (RFC 952, 1123, 5890): an internationalized
// name has to come as its A-label, so no Unicode mapping can make two spellings of one name.
func canonicalName(s string) (name, why string) {
	s = strings.TrimSuffix(s, ".")
	if s == "" || len(s) > maxName {
		return "", "bad-length"
	}
	if strings.ContainsAny(s, "[]:%") {
		return "", "ip-literal"
	}
	b := []byte(s)
	for i, c := range b {
		switch {
		case c >= 'A' && c <= 'Z':
			b[i] = c + ('a' - 'A')
		case c >= 'a' && c <= 'z', c >= '0' && c <= '9', c == '-', c == '.':
		default:
			return "", "bad-char"
		}
	}
	labels := strings.Split(string(b), ".")
	for _, l := range labels {
		if l == "" || len(l) > maxLabel || l[0] == '-' || l[len(l)-1] == '-' {
			return "", "bad-label"
		}
	}
	if numeric(labels[len(labels)-1]) {
		return "", "ip-literal"
	}
	return string(b), ""
}

// numeric tells whether a name that ends in this label is read as an IPv4 address by some program: the "ends in a
// number" rule of the WHATWG URL standard, which covers 127.1, 2130706433, 0x7f.1 and 017700000001. No top-level
// domain is numeric (RFC 3696 section 2), so nothing real is lost.
func numeric(label string) bool {
	if strings.Trim(label, "0123456789") == "" {
		return true
	}
	hex, found := strings.CutPrefix(label, "0x")
	return found && strings.Trim(hex, "0123456789abcdef") == ""
}
