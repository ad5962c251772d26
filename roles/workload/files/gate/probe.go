// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"
)

// Bounds of the probes. All run at once; in a healthy session the DNS silence (dnsSilence) is what takes time. The
// allow control may have to wait for Caddy's own resolver and dial timeouts (5 s + 10 s) to learn that an upstream is
// down, which is a warning and not a failure.
const (
	probeBound  = 3 * time.Second
	allowBound  = 17 * time.Second
	dialBound   = 1 * time.Second
	dnsSilence  = 100 * time.Millisecond
	answerBound = 2500 * time.Millisecond
)

// inside is what probes look at.
type inside struct {
	plan  *Plan
	token string
	at    atStart
	role  string // "run" or "probe"
}

// probe answers the checks of its ids, within its bound.
type probe struct {
	ids   []string
	bound time.Duration
	run   func(context.Context, *inside) []Check
}

func one(id string, run func(context.Context, *inside) Check) probe {
	return probe{[]string{id}, probeBound, func(ctx context.Context, in *inside) []Check {
		return []Check{run(ctx, in)}
	}}
}

// probesFor lists the probes that apply to this role and plan. What the plan does not ask for is left out, and the
// host, which knows the plan, misses nothing.
func probesFor(in *inside) []probe {
	list := append(processProbes(in), syscallProbes(in)...)
	list = append(list, socketProbes()...)
	list = append(list, fileProbes()...)
	return append(list, networkProbes(in)...)
}

// inspect runs the probes in parallel and returns one check per id, in the table's order.
func inspect(in *inside, probes []probe) []Check {
	results := make([][]Check, len(probes))
	var wg sync.WaitGroup
	for i, p := range probes {
		wg.Add(1)
		go func() {
			defer wg.Done()
			results[i] = bounded(in, p)
		}()
	}
	wg.Wait()
	checks := []Check{}
	for _, r := range results {
		for _, c := range r {
			checks = append(checks, c.complete())
		}
	}
	return checks
}

// bounded runs one probe. A probe that panics, says nothing or takes too long is inconclusive, which aborts the open.
func bounded(in *inside, p probe) []Check {
	ctx, cancel := context.WithTimeout(context.Background(), p.bound)
	defer cancel()
	done := make(chan []Check, 1)
	go func() {
		defer func() {
			if r := recover(); r != nil {
				done <- unanswered(p.ids, fmt.Sprintf("probe broke: %v", r))
			}
		}()
		done <- p.run(ctx, in)
	}()
	grace := time.NewTimer(p.bound + p.bound/10) // the probe's own timeouts answer better than this one
	defer grace.Stop()
	select {
	case checks := <-done:
		return checks
	case <-grace.C:
		return unanswered(p.ids, fmt.Sprintf("no answer within %v", p.bound))
	}
}

func unanswered(ids []string, reason string) []Check {
	checks := make([]Check, len(ids))
	for i, id := range ids {
		checks[i] = Check{ID: id, Verdict: inconclusive, Reason: reason}
	}
	return checks
}

func (c Check) complete() Check {
	def := definitions[c.ID]
	c.Invariant, c.Expect = def.invariant, def.expect
	c.Got, c.Reason = oneLine(c.Got, maxGot), oneLine(c.Reason, maxReason)
	return c
}

func examine(in *inside) *Report {
	begin := time.Now()
	checks := inspect(in, probesFor(in))
	return &Report{Version: protocolVersion, PID: os.Getpid(), Nonce: newNonce(), PlanDigest: in.plan.PlanDigest,
		Micros: time.Since(begin).Microseconds(), Checks: checks}
}

// probeRole prints one report. It succeeds when it could probe, whatever the verdicts are: the host judges.
func probeRole(args []string, at atStart) int {
	in, code := prepare(args, at, "probe")
	if in == nil {
		return code
	}
	if _, err := os.Stdout.Write(examine(in).line()); err != nil {
		return complain(exitInternal, "report: %v", err)
	}
	return 0
}
