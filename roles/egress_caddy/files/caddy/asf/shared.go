// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"io"
	"net/netip"
	"slices"
	"sync"
)

// tunnels are what the handlers of one listener have in common over a change of the configuration: what is open, and
// how many may be. A tunnel outlives the handler that let it in as long as the newest handler would let it in too; with
// the last handler everything ends (case P15).
type tunnels struct {
	key    string // of listeners
	group  *group
	slots  chan struct{}
	forget func()

	mu       sync.Mutex
	handlers []*Connect // the newest last
	open     map[*tunnel]struct{}
}

// tunnel is one that is open, with what a later list has to allow.
type tunnel struct {
	target    authority
	addr      netip.Addr // dialled here; none through the operator's proxy
	unchecked bool       // its first bytes were not compared with the name
	ends      []io.Closer
	withdrawn bool
}

var (
	listenersMu sync.Mutex
	listeners   = map[string]*tunnels{}
)

// join makes a handler the newest one of its listener.
func (c *Connect) join() {
	listenersMu.Lock()
	defer listenersMu.Unlock()
	key := c.Session + "\n" + c.Listener
	t := listeners[key]
	if t == nil || t.group.isStopped() || cap(t.slots) != c.MaxTunnels {
		t = &tunnels{key: key, group: newGroup(), slots: make(chan struct{}, c.MaxTunnels), open: map[*tunnel]struct{}{}}
		t.forget = register(t.group)
		listeners[key] = t
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.handlers = append(t.handlers, c)
	c.tunnels, c.group, c.slots = t, t.group, t.slots
}

// part takes a handler away. With the last one all tunnels end; else those that the newest would not let in.
func (c *Connect) part() {
	t := c.tunnels
	t.mu.Lock()
	t.handlers = slices.DeleteFunc(t.handlers, func(one *Connect) bool { return one == c })
	last := len(t.handlers) == 0
	if !last {
		t.prune()
	}
	t.mu.Unlock()
	if !last {
		return
	}
	t.group.stop(stopPatience)
	t.forget()
	listenersMu.Lock()
	defer listenersMu.Unlock()
	if listeners[t.key] == t {
		delete(listeners, t.key)
	}
}

// current is the handler whose list decides: after a reload also about who had come to the old one, and was slow to ask.
func (c *Connect) current() *Connect {
	t := c.tunnels
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.handlers); n > 0 && !slices.Contains(t.handlers, c) {
		return t.handlers[n-1]
	}
	return c
}

func (t *tunnels) prune() {
	newest := t.handlers[len(t.handlers)-1]
	for one := range t.open {
		if !newest.permits(one) {
			one.withdrawn = true
			for _, end := range one.ends {
				_ = end.Close()
			}
		}
	}
}

// hold notes an open tunnel. false: the session has ended, or its policy does not allow the tunnel any more, because it
// changed while the destination was being reached. The caller closes it then.
func (t *tunnels) hold(one *tunnel) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.handlers); n > 0 && !t.handlers[n-1].permits(one) {
		one.withdrawn = true
		return false
	}
	if !t.group.hold(one.ends...) {
		return false
	}
	t.open[one] = struct{}{}
	return true
}

func (t *tunnels) release(one *tunnel) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.open, one)
	t.group.release(one.ends...)
}

// isWithdrawn tells whether a policy ended the tunnel.
func (t *tunnels) isWithdrawn(one *tunnel) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return one.withdrawn
}

// permits judges an open tunnel as its request would be judged now.
func (c *Connect) permits(one *tunnel) bool {
	r, no := c.policy.judge(one.target)
	if no != nil || one.unchecked && !r.anyTLS {
		return false
	}
	if c.Chain != nil || !one.addr.IsValid() {
		return (c.Chain != nil) == !one.addr.IsValid()
	}
	_, bad := checkAddress(one.addr, r.private, c.policy.deny)
	return bad == nil
}
