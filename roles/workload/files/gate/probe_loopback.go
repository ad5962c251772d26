// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"context"
	"net"
)

const loopbackWorks = "tcp=connected udp=answered"

// probeLoopback is the control of the probing itself. Where nothing at all may be reached, it alone shows that a
// connection and an answer would have been seen.
func probeLoopback(ctx context.Context, _ *inside) Check {
	got := "tcp=" + loopbackTCP(ctx) + " udp=" + loopbackUDP(ctx)
	if got == loopbackWorks {
		return Check{ID: "loopback", Got: got, Verdict: pass}
	}
	return Check{ID: "loopback", Got: got, Verdict: inconclusive, Reason: "the probes see nothing, not even loopback"}
}

func loopbackTCP(ctx context.Context) string {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return "listen-" + errorWord(err)
	}
	defer l.Close()
	return dialWord(ctx, "tcp", l.Addr().String())
}

// loopbackUDP answers its own DNS query.
func loopbackUDP(ctx context.Context) string {
	c, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		return "listen-" + errorWord(err)
	}
	defer c.Close()
	go func() {
		b := make([]byte, 512)
		if n, from, err := c.ReadFrom(b); err == nil {
			c.WriteTo(b[:n], from)
		}
	}()
	return dnsWord(ctx, "udp", c.LocalAddr().String())
}
