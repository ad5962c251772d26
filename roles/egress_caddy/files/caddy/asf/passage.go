// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"time"
)

// client is the asking side of a tunnel: what differs between a CONNECT and a ClientHello that came by itself.
type client interface {
	// objection may refuse a name and port that the list allows.
	objection(r *rule) *refusal
	// connection hands the client's connection over, and its half-close. It is called once, when the destination is there.
	connection() (net.Conn, func() error, error)
	// stream tells the client that its tunnel stands and returns all that it sends to the destination. It is nil when
	// the client left or sent something else than was declared; the decision then has the reason.
	stream(r *rule, d *decision) io.Reader
}

// decide carries a request out and writes its line. It is in the group until the line is written: who waits for the
// group to be idle waits for the lines of what was cut (case P15). A request that serve gives no reason leaves no line.
func (c *Connect) decide(d *decision, serve func() *refusal) *refusal {
	no := refuse(reasonClosed, "")
	if c.group.enter() {
		defer c.group.leave()
		no = serve()
	}
	if no != nil {
		d.refuse(no)
	}
	if d.reason != "" {
		d.emit()
	}
	return no
}

// pass is the one way out, whatever the client speaks: the name is judged, one of the tunnels taken, the name resolved,
// its address checked and dialled, the bytes carried. It returns nil when the client got its tunnel, however that ended.
func (c *Connect) pass(parent context.Context, target authority, from client, d *decision) *refusal {
	c = c.current()
	d.host, d.port = target.name, strconv.Itoa(int(target.port))
	r, no := c.policy.judge(target)
	if no != nil {
		return no
	}
	d.key = r.key
	if no = from.objection(r); no != nil {
		return no
	}
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	default:
		return refuse(reasonLimitTunnels, fmt.Sprintf("%d tunnels are open", c.MaxTunnels))
	}
	ctx, cancel := c.group.context(parent)
	defer cancel()
	upstream, no := c.reach(ctx, r, target, d)
	if no != nil {
		return c.reconsider(ctx, no)
	}
	defer func() { _ = upstream.Close() }()
	return c.carry(from, upstream, r, target, d)
}

// reconsider names the real cause when a lookup or dial failed only because its request ended.
func (c *Connect) reconsider(ctx context.Context, no *refusal) *refusal {
	switch {
	case !errors.Is(ctx.Err(), context.Canceled):
		return no
	case c.group.isStopped():
		return refuse(reasonClosed, "")
	}
	return refuse(reasonClientGone, "left before the destination answered")
}

// carry takes the client's connection over, says yes and pumps.
func (c *Connect) carry(from client, upstream net.Conn, r *rule, target authority, d *decision) *refusal {
	conn, half, err := from.connection()
	if err != nil {
		return refuse(reasonInternal, "the connection could not be taken over")
	}
	defer func() { _ = conn.Close() }()
	one := &tunnel{target: target, unchecked: r.anyTLS, ends: []io.Closer{conn, upstream}}
	if c.Chain == nil {
		one.addr = remote(upstream)
	}
	if !c.tunnels.hold(one) {
		d.reason = reasonClosed
		c.noteStop(one, d)
		return nil
	}
	defer c.tunnels.release(one)
	sent := from.stream(r, d)
	if sent == nil {
		c.noteStop(one, d)
		return nil
	}
	_ = conn.SetDeadline(time.Time{})
	f := &flow{client: conn, upstream: upstream, fromClient: sent, halfClient: half, idle: time.Duration(c.IdleTimeout)}
	f.run()
	d.reason, d.detail, d.up, d.down = f.reason, f.detail, f.up.Load(), f.down.Load()
	c.noteStop(one, d)
	return nil
}

// noteStop says "closed" of a tunnel that ended because its session or its grant did.
func (c *Connect) noteStop(one *tunnel, d *decision) {
	switch {
	case c.tunnels.isWithdrawn(one):
		d.reason, d.detail = reasonClosed, "cut: the session's new policy does not allow it"
	case c.group.isStopped():
		d.reason, d.detail = reasonClosed, "cut at the session's end"
	}
}

// remote is the address that was dialled.
func remote(conn net.Conn) netip.Addr {
	if a, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}
