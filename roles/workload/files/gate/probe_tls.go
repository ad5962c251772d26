// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"
)

// helloWord sends a ClientHello to the transparent listener and says what its first answer is: "server-hello",
// "alert:N", "other:N" with the record's type, "closed" or "silent" after the connection stood, else the error.
func helloWord(ctx context.Context, addr, name string, bound time.Duration) string {
	dialCtx, cancel := context.WithTimeout(ctx, dialBound)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(dialCtx, "tcp", addr)
	if err != nil {
		return errorWord(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(bound))
	if _, err := c.Write(clientHello(name)); err != nil {
		return afterWord(err)
	}
	record := make([]byte, 7) // header, and an alert's level and description (RFC 8446 sections 5.1 and 6)
	if _, err := io.ReadFull(c, record); err != nil {
		return afterWord(err)
	}
	switch record[0] {
	case 22:
		return "server-hello"
	case 21:
		return fmt.Sprintf("alert:%d", record[6])
	}
	return fmt.Sprintf("other:%d", record[0])
}

func afterWord(err error) string {
	if errorWord(err) == "timeout" {
		return "silent"
	}
	return "closed"
}

// probeTLSAllow: what the host answers came through the listener. Its access_denied (49) is the policy's alone, its
// internal_error (80) is trouble on the way.
func probeTLSAllow(ctx context.Context, in *inside) Check {
	word := helloWord(ctx, in.plan.Probes.TLS.Addr, in.plan.Probes.TLS.Allow, allowBound-dialBound)
	c := Check{ID: "tls-allow", Got: word, Verdict: inconclusive, Reason: "no answer through the listener"}
	switch word {
	case "server-hello":
		c.Verdict, c.Reason = pass, ""
	case "alert:49":
		c.Verdict, c.Reason = fail, "policy denies the control"
	case "alert:80", "closed", "silent":
		c.Verdict, c.Reason = warn, "upstream-"+word
	}
	return c
}

// probeTLSDeny: only the policy's own alert is a denial.
func probeTLSDeny(ctx context.Context, in *inside) Check {
	word := helloWord(ctx, in.plan.Probes.TLS.Addr, in.plan.Probes.TLS.Deny, answerBound)
	c := Check{ID: "tls-deny", Got: word, Verdict: inconclusive, Reason: "not the policy's denial"}
	switch word {
	case "alert:49":
		c.Verdict, c.Reason = pass, ""
	case "server-hello", "alert:80":
		c.Verdict, c.Reason = fail, "the undeclared name passed the policy"
	}
	return c
}
