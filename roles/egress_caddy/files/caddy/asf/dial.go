// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"
)

const (
	maxAddresses = 16 // of one answer; more is no reason to keep a client waiting
	minAttempt   = 2 * time.Second
)

var errAddressChanged = errors.New("the address at the socket is not the one that was checked")

// reach resolves an allowed name and connects to the first of its addresses that may be dialled and answers.
// The name is looked up once and a checked literal is dialled, so an answer that changes between check and dial
// (DNS rebinding) changes nothing.
// With a chain the operator's proxy is dialled instead, and the name is left to it.
func (c *Connect) reach(ctx context.Context, r *rule, a authority, d *decision) (net.Conn, *refusal) {
	if c.Chain != nil {
		return c.through(ctx, a, d)
	}
	look, cancel := context.WithTimeout(ctx, time.Duration(c.DNSTimeout))
	addrs, no := c.lookup.resolve(look, a.name)
	cancel()
	if no != nil {
		return nil, no
	}
	usable, bad := sift(addrs, r.private, c.policy.deny)
	if len(usable) == 0 {
		return nil, addressRefusal(r, bad)
	}
	ctx, cancel = context.WithTimeout(ctx, time.Duration(c.DialTimeout))
	defer cancel()
	conn, err := dialFirst(ctx, usable, a.port, d)
	if err != nil {
		return nil, dialRefusal(ctx, err, bad)
	}
	return conn, nil
}

// dialFirst connects to the first of the checked addresses that answers, and notes the last one that was tried.
func dialFirst(ctx context.Context, usable []netip.Addr, port uint16, d *decision) (conn net.Conn, err error) {
	for i, addr := range usable {
		target := netip.AddrPortFrom(addr, port)
		d.addr = target.String()
		if conn, err = dialChecked(ctx, target, share(ctx, len(usable)-i)); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

// sift splits an answer into what may be dialled, in the resolver's order, and what is barred.
func sift(addrs []netip.Addr, private, deny []netip.Prefix) (usable []netip.Addr, bad []*barred) {
	for i, a := range addrs {
		if i == maxAddresses {
			break
		}
		if ok, no := checkAddress(a, private, deny); no == nil {
			usable = append(usable, ok)
		} else {
			bad = append(bad, no)
		}
	}
	return usable, bad
}

func addressRefusal(r *rule, bad []*barred) *refusal {
	no := refuse(reasonDeniedAddress, joinBarred(bad))
	for _, b := range bad {
		if !b.hard {
			return no.at(r.key+".private", "if this name is meant to resolve there, list the CIDR as private in the map "+
				"form of "+r.key+", then open the session again, also while it lives")
		}
	}
	return no.at("", "the address belongs to the host or to the sandbox itself: no manifest key opens it")
}

func joinBarred(bad []*barred) string {
	texts := make([]string, 0, len(bad))
	for _, b := range bad {
		texts = append(texts, b.String())
	}
	return strings.Join(texts, "; ")
}

// share divides the time that is left among the addresses still to try, as net.Dialer does.
func share(ctx context.Context, left int) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok || left < 1 {
		return minAttempt
	}
	return max(time.Until(deadline)/time.Duration(left), minAttempt)
}

// dialChecked connects to one literal. The control hook sees the address that is about to be given to connect(2), and
// refuses any other than the one that was checked, whatever the dialer did in between.
func dialChecked(ctx context.Context, target netip.AddrPort, timeout time.Duration) (net.Conn, error) {
	d := net.Dialer{Timeout: timeout, Control: controlFor(target)}
	return d.DialContext(ctx, "tcp", target.String())
}

func controlFor(target netip.AddrPort) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		if got, err := netip.ParseAddrPort(address); err != nil || got != target {
			return errAddressChanged
		}
		return nil
	}
}

func dialRefusal(ctx context.Context, err error, bad []*barred) *refusal {
	reason, detail := dialReason(ctx, err), ""
	if len(bad) > 0 {
		detail = "not tried: " + joinBarred(bad)
	}
	return refuse(reason, detail)
}

func dialReason(ctx context.Context, err error) string {
	var ne net.Error
	switch {
	case errors.Is(err, errAddressChanged):
		return reasonInternal
	case errors.Is(err, syscall.ECONNREFUSED):
		return reasonUpstreamRefused
	case errors.Is(ctx.Err(), context.DeadlineExceeded), errors.As(err, &ne) && ne.Timeout():
		return reasonUpstreamTimeout
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH),
		errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return reasonUpstreamUnreachable
	}
	return reasonUpstreamFailure
}
