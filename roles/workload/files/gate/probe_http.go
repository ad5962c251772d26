// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/textproto"
	"strconv"
	"strings"
	"time"
)

// answer is the head of an HTTP response. Package net/http would double the gate's size for these few lines.
type answer struct {
	status int
	header textproto.MIMEHeader
}

const maxHead = 64 << 10

// ask sends one request head and reads one response head, within bound.
func ask(ctx context.Context, addr, head string, bound time.Duration) (answer, error) {
	dialCtx, cancel := context.WithTimeout(ctx, dialBound)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(dialCtx, "tcp", addr)
	if err != nil {
		return answer{}, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(bound))
	if _, err := io.WriteString(c, head); err != nil {
		return answer{}, err
	}
	return readAnswer(io.LimitReader(c, maxHead))
}

func readAnswer(r io.Reader) (answer, error) {
	in := textproto.NewReader(bufio.NewReader(r))
	line, err := in.ReadLine()
	if err != nil {
		return answer{}, err
	}
	words := strings.SplitN(line, " ", 3)
	if len(words) < 2 || !strings.HasPrefix(words[0], "HTTP/1.") || len(words[1]) != 3 {
		return answer{}, fmt.Errorf("not HTTP: %q", oneLine(line, 60))
	}
	status, err := strconv.Atoi(words[1])
	if err != nil {
		return answer{}, err
	}
	header, err := in.ReadMIMEHeader()
	return answer{status, header}, err
}

// word is "200", or "403:denied-name" with the value of the given header.
func (a answer) word(name string) string {
	if v := a.header.Get(name); v != "" {
		return fmt.Sprintf("%d:%s", a.status, strings.ReplaceAll(oneLine(v, 80), " ", "_"))
	}
	return strconv.Itoa(a.status)
}

func connect(ctx context.Context, t *ProxyTarget, bound time.Duration) (answer, error) {
	return ask(ctx, t.Proxy, fmt.Sprintf("CONNECT %s HTTP/1.1\r\nHost: %s\r\n\r\n", t.Target, t.Target), bound)
}

func connectWord(ctx context.Context, t *ProxyTarget, bound time.Duration) string {
	a, err := connect(ctx, t, bound)
	if err != nil {
		return errorWord(err)
	}
	return a.word("X-Asf-Proxy")
}

// probeAllow answers both halves of the positive control: what the proxy decided, and whether the host was reached.
func probeAllow(ctx context.Context, in *inside) []Check {
	word := connectWord(ctx, in.plan.Probes.Allow, allowBound-dialBound)
	decision := Check{ID: "proxy-allow", Got: word, Verdict: inconclusive, Reason: "no answer of ASF's proxy"}
	reach := Check{ID: "proxy-reach", Got: word, Verdict: inconclusive, Reason: decision.Reason}
	_, reason, _ := strings.Cut(word, ":")
	switch {
	case word == "200" || word == "200:ok":
		decision.Verdict, decision.Reason, reach.Verdict, reach.Reason = pass, "", pass, ""
	case strings.HasPrefix(reason, "upstream-"):
		decision.Verdict, decision.Reason, reach.Verdict, reach.Reason = pass, "", warn, reason
	case strings.HasPrefix(reason, "denied-"):
		decision.Verdict, decision.Reason, reach.Reason = fail, "policy denies the control", "denied"
	}
	return []Check{decision, reach}
}

// probeDeny: only the policy's own denial counts; a dead proxy denies nothing (L6).
func probeDeny(ctx context.Context, in *inside) Check {
	word := connectWord(ctx, in.plan.Probes.Deny, answerBound)
	c := Check{ID: "proxy-deny", Got: word, Verdict: inconclusive, Reason: "not the policy's denial"}
	_, reason, _ := strings.Cut(word, ":")
	switch {
	case word == "403:denied-name":
		c.Verdict, c.Reason = pass, ""
	case strings.HasPrefix(word, "200") || strings.HasPrefix(reason, "upstream-"):
		c.Verdict, c.Reason = fail, "the undeclared name passed the policy"
	}
	return c
}

// probePolicy asks whoever names the policy by which it decides: the proxy with a refusal, else the front's control.
func probePolicy(ctx context.Context, in *inside) Check {
	var a answer
	var err error
	if t := in.plan.Probes.Deny; t != nil {
		a, err = connect(ctx, t, answerBound)
	} else {
		a, err = control(ctx, in.plan.Probes.Front, in.token)
	}
	c := Check{ID: "policy-current", Verdict: inconclusive, Reason: "nobody names a policy"}
	if err != nil {
		c.Got = errorWord(err)
		return c
	}
	c.Got = strings.ReplaceAll(oneLine(a.header.Get("X-Asf-Policy"), 80), " ", "_")
	switch {
	case c.Got == in.plan.Probes.Policy:
		c.Verdict, c.Reason = pass, ""
	case c.Got != "":
		c.Verdict, c.Reason = fail, "Caddy decides by another policy"
	default:
		c.Got = "none"
	}
	return c
}

func control(ctx context.Context, f *FrontTarget, token string) (answer, error) {
	head := fmt.Sprintf("GET %s HTTP/1.1\r\nHost: front\r\nConnection: close\r\n", f.Path)
	if token != "" {
		head += "Authorization: Bearer " + token + "\r\n"
	}
	return ask(ctx, f.Addr, head+"\r\n", answerBound)
}

func frontWord(ctx context.Context, f *FrontTarget, token string) string {
	a, err := control(ctx, f, token)
	if err != nil {
		return errorWord(err)
	}
	return a.word("X-Asf-Front")
}

func probeFront(ctx context.Context, in *inside) Check {
	word := frontWord(ctx, in.plan.Probes.Front, in.token)
	c := Check{ID: "front-control", Got: word, Verdict: inconclusive, Reason: "no answer of ASF's front"}
	switch {
	case word == "204:ok":
		c.Verdict, c.Reason = pass, ""
	case strings.HasPrefix(word, "401"):
		c.Verdict, c.Reason = fail, "the front refuses the session token"
	}
	return c
}

// probeFrontRefuses asks without a token and with a wrong one of the same length.
func probeFrontRefuses(ctx context.Context, in *inside) Check {
	wrong := strings.Repeat("x", len(in.token))
	none, other := frontWord(ctx, in.plan.Probes.Front, ""), frontWord(ctx, in.plan.Probes.Front, wrong)
	c := Check{ID: "front-refuses", Got: "none=" + none + " wrong=" + other, Verdict: pass}
	for _, word := range []string{none, other} {
		switch {
		case strings.HasPrefix(word, "401"):
		case strings.HasPrefix(word, "2"):
			return Check{ID: c.ID, Got: c.Got, Verdict: fail, Reason: "the front answers without the session token"}
		default:
			c.Verdict, c.Reason = inconclusive, "neither refused nor let through"
		}
	}
	return c
}
