// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"strconv"
	"strings"
	"time"

	"github.com/caddyserver/caddy/v2"
	"go.uber.org/zap"
)

const (
	maxLogged     = 300
	decisionAllow = "allow"
	decisionDeny  = "deny"
)

// decision is the one log line that a request leaves.
type decision struct {
	session, listener  string
	method, host, port string
	reason, detail     string
	key, addr          string
	up, down           int64
	start              time.Time
}

// verdict: upstream trouble, a client that left and a tunnel that was cut were all allowed by the policy.
func (d *decision) verdict() string {
	switch d.reason {
	case reasonOK, reasonClientGone, reasonIdleTimeout, reasonClosed:
		return decisionAllow
	}
	if strings.HasPrefix(d.reason, "upstream-") {
		return decisionAllow
	}
	return decisionDeny
}

func (d *decision) refuse(r *refusal) {
	d.reason, d.detail = r.reason, r.detail
	if r.key != "" { // else the key of the entry that allowed the name stays
		d.key = r.key
	}
}

func (d *decision) emit() {
	k := kind{session: d.session, listener: d.listener, method: printable(d.method), host: printable(d.host),
		port: printable(d.port), decision: d.verdict(), reason: d.reason, key: printable(d.key)}
	decided.note(k, printable(d.detail), d.addr, d.up, d.down, d.start)
}

// logger is looked up for each line, so that lines of an old configuration's requests go where the new one logs.
func logger() *zap.Logger {
	return caddy.Log().Named("asf")
}

// printable makes what a client sent fit for a log or a terminal: ASCII only (no control bytes, no bidirectional
// marks), bounded. Quotes are left alone; the JSON encoder escapes them.
func printable(s string) string {
	cut := len(s) > maxLogged
	if cut {
		s = s[:maxLogged]
	}
	plain := true
	for i := 0; i < len(s) && plain; i++ {
		plain = s[i] >= 0x20 && s[i] < 0x7f
	}
	if !plain {
		s = strings.ReplaceAll(strings.Trim(strconv.QuoteToASCII(s), `"`), `\"`, `"`)
	}
	if cut {
		s += "[cut]"
	}
	return s
}

// describeTarget reduces a raw request target to what a log may hold: userinfo, query and fragment can carry
// credentials of the workload.
func describeTarget(raw string) string {
	if i := strings.IndexAny(raw, "?#"); i >= 0 {
		raw = raw[:i] + "?[cut]"
	}
	scheme, rest, found := strings.Cut(raw, "://")
	if !found {
		scheme, rest = "", raw
	} else {
		scheme += "://"
	}
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		rest = "[cut]@" + rest[at+1:]
	}
	return scheme + rest
}
