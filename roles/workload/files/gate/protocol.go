// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"bufio"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	maxPeers    = 8               // connections served at the same time
	maxLine     = 512             // bytes of one order
	answerGrace = 2 * time.Second // for writing the report or "ok" to a peer
)

// outcome is how waiting for go ended: go itself when all fields are zero.
type outcome struct {
	stop   string
	signal syscall.Signal
	err    error
}

// hostSide speaks the gate's protocol: the gate writes its report, the host answers "go NONCE" or "stop REASON". A
// connection that ends without an order changes nothing: the gate goes on accepting until its deadline.
type hostSide struct {
	listener *net.UnixListener
	deadline time.Time
	ready    chan struct{} // closed once report is set
	report   *Report
	orders   chan order
	done     chan struct{} // closed when no order is taken any more
	slots    chan struct{}
	mu       sync.Mutex
	peers    map[*net.UnixConn]bool
}

type order struct {
	outcome
	from *net.UnixConn
}

func newHostSide(l *net.UnixListener, deadline time.Time) *hostSide {
	return &hostSide{listener: l, deadline: deadline, ready: make(chan struct{}), orders: make(chan order),
		done: make(chan struct{}), slots: make(chan struct{}, maxPeers), peers: map[*net.UnixConn]bool{}}
}

func (h *hostSide) publish(r *Report) {
	h.report = r
	close(h.ready)
}

func (h *hostSide) accept() {
	for {
		h.slots <- struct{}{}
		c, err := h.listener.AcceptUnix()
		if err != nil {
			return // closed: the gate has its outcome
		}
		h.mu.Lock()
		h.peers[c] = true
		h.mu.Unlock()
		go func() {
			h.serve(c)
			h.drop(c)
			<-h.slots
		}()
	}
}

func (h *hostSide) drop(c *net.UnixConn) {
	h.mu.Lock()
	delete(h.peers, c)
	h.mu.Unlock()
	c.Close()
}

// serve returns when the peer is gone, said something that is no order, or its order was taken.
func (h *hostSide) serve(c *net.UnixConn) {
	select {
	case <-h.ready:
	case <-h.done:
		return
	}
	c.SetWriteDeadline(time.Now().Add(answerGrace))
	if _, err := c.Write(h.report.line()); err != nil {
		return
	}
	c.SetReadDeadline(h.deadline)
	line, err := bufio.NewReader(io.LimitReader(c, maxLine)).ReadString('\n')
	if err != nil {
		return
	}
	o, ok := parseOrder(line, h.report.Nonce)
	if !ok {
		c.SetWriteDeadline(time.Now().Add(answerGrace))
		io.WriteString(c, "no\n")
		return
	}
	select {
	case h.orders <- order{o, c}:
		<-h.done
	case <-h.done:
	}
}

// parseOrder knows "go NONCE" and "stop REASON". The nonce ties an order to the very report that it answers.
func parseOrder(line, nonce string) (outcome, bool) {
	word, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	switch {
	case word == "go" && rest == nonce:
		return outcome{}, true
	case word == "stop":
		if rest == "" {
			rest = "no reason given"
		}
		return outcome{stop: rest}, true
	}
	return outcome{}, false
}

// wait returns the first order, the first ending signal, or the deadline's error. On an order it answers "ok", and that
// answer is written only after the listener is closed, so that whoever reads it finds no gate to talk to any more.
func (h *hostSide) wait(signals <-chan os.Signal) outcome {
	timer := time.NewTimer(time.Until(h.deadline))
	defer timer.Stop()
	for {
		select {
		case o := <-h.orders:
			h.listener.Close()
			o.from.SetWriteDeadline(time.Now().Add(answerGrace))
			io.WriteString(o.from, "ok\n")
			return o.outcome
		case s := <-signals:
			switch s {
			case syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP:
				return outcome{signal: s.(syscall.Signal)}
			}
		case <-timer.C:
			return outcome{err: os.ErrDeadlineExceeded}
		}
	}
}

// close ends everything that the workload could see of the protocol.
func (h *hostSide) close() {
	close(h.done)
	h.listener.Close()
	h.mu.Lock()
	defer h.mu.Unlock()
	for c := range h.peers {
		c.Close()
	}
}
