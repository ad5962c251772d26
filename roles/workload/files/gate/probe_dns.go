// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"context"
	"net"
	"time"
)

// dnsQuery asks for localhost's address: a resolver answers that by itself, at once, and forwards nothing.
var dnsQuery = []byte{0xa5, 0xf0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 9, 'l', 'o', 'c', 'a', 'l', 'h', 'o', 's', 't', 0, 0, 1, 0, 1}

func probeDNS(ctx context.Context, in *inside) Check {
	words := eachAddress(in.plan.Probes.DNS, []string{"udp", "tcp"}, func(addr, kind string) string {
		return dnsWord(ctx, kind, addr)
	})
	return judgeWords("dns-silent", words, func(_, _, word string) string {
		switch {
		case word == "answered", word == "connected":
			return fail
		case localTrouble[word]:
			return inconclusive
		}
		return pass
	})
}

// dnsWord sends one query and waits dnsSilence for any answer.
func dnsWord(ctx context.Context, network, addr string) string {
	query := dnsQuery
	if network == "tcp" {
		query = append([]byte{0, byte(len(dnsQuery))}, dnsQuery...)
	}
	return askWord(ctx, dnsSilence, network, addr, query)
}

// askWord sends one question and waits so long for any answer: "answered", "silent" (or, over TCP, "connected"), or an
// error's name.
func askWord(ctx context.Context, silence time.Duration, network, addr string, question []byte) string {
	ctx, cancel := context.WithTimeout(ctx, dialBound)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, network, addr)
	if err != nil {
		return errorWord(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(silence))
	if _, err := c.Write(question); err != nil {
		return errorWord(err)
	}
	n, err := c.Read(make([]byte, 1500))
	switch {
	case n > 0:
		return "answered"
	case network == "tcp":
		return "connected" // something listens, whatever it does with the question
	case errorWord(err) == "timeout":
		return "silent"
	}
	return errorWord(err)
}
