// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// reset gives a test a ledger of its own; write nil means the log.
func (l *ledger) reset(write func([]zap.Field)) {
	fresh := newLedger()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tallies, l.allowed, l.denied, l.lines, l.spent, l.write = fresh.tallies, 0, 0, 0, 0, fresh.write
	l.stages = []stage{{math.MaxInt64, 100000, 100000, 100000, time.Hour}} // other tests want every line
	if write != nil {
		l.write = write
	}
}

// sheet is a ledger that writes into a list.
func sheet(t *testing.T, s ...stage) (*ledger, *[]map[string]any) {
	t.Helper()
	var rows []map[string]any
	l := &ledger{stages: s, tallies: map[kind]*tally{}, write: func(fields []zap.Field) {
		row := zapcore.NewMapObjectEncoder()
		for _, f := range fields {
			f.AddTo(row)
		}
		rows = append(rows, row.Fields)
	}}
	t.Cleanup(l.flush)
	return l, &rows
}

func denied(host string) kind {
	return kind{session: "a.main", listener: "L1", method: "CONNECT", host: host, port: "443", decision: decisionDeny,
		reason: reasonDeniedName, key: "network.allow_domains"}
}

func total(rows []map[string]any) (n int64) {
	for _, row := range rows {
		if count, ok := row["count"].(int64); ok {
			n += count
		} else {
			n++
		}
	}
	return n
}

func TestRepeatedDecisionsAreCounted(t *testing.T) {
	l, rows := sheet(t, stage{math.MaxInt64, 3, 100, 10, time.Hour})
	for range 1000 {
		l.note(denied("evil.example"), "why", "", 5, 7, time.Now())
	}
	l.note(denied("other.example"), "why", "", 0, 0, time.Now())
	if len(*rows) != 4 || (*rows)[0]["detail"] != "why" {
		t.Fatalf("%d lines: %v", len(*rows), *rows)
	}
	l.flush()
	last := (*rows)[len(*rows)-1]
	if len(*rows) != 5 || last["count"] != int64(997) || last["host"] != "evil.example" || last["up"] != int64(997*5) ||
		last["others"] != false || last["first"].(float64) > last["last"].(float64) || total(*rows) != 1001 {
		t.Errorf("%d lines, last %v", len(*rows), last)
	}
	l.flush()
	l.note(denied("evil.example"), "why", "", 0, 0, time.Now())
	if len(*rows) != 6 || (*rows)[5]["detail"] != "why" {
		t.Errorf("a new interval does not begin anew: %v", (*rows)[5:])
	}
}

func TestManyNamesAreCountedTogether(t *testing.T) {
	l, rows := sheet(t, stage{math.MaxInt64, 3, 100, 10, time.Hour})
	for i := range 5000 {
		l.note(denied(fmt.Sprintf("n%d.example", i)), "", "", 1, 0, time.Now())
	}
	l.flush()
	last := (*rows)[len(*rows)-1]
	if len(*rows) != 11 || last["others"] != true || last["host"] != nil || last["reason"] != reasonDeniedName ||
		total(*rows) != 5000 {
		t.Errorf("%d lines, last %v", len(*rows), last)
	}
}

// TestAFloodHidesNothingThatWasLetThrough: many refused names first, in every stage, then one that is allowed.
func TestAFloodHidesNothingThatWasLetThrough(t *testing.T) {
	for _, s := range stages {
		s.upTo = math.MaxInt64
		l, rows := sheet(t, s)
		for i := range 5000 {
			l.note(denied(fmt.Sprintf("n%d.example", i)), "", "", 0, 0, time.Now())
		}
		k := denied("declared.example")
		k.decision, k.reason = decisionAllow, reasonOK
		l.note(k, "", "", 77, 0, time.Now())
		l.flush()
		var seen []map[string]any
		for _, row := range *rows {
			if row["decision"] == decisionAllow {
				seen = append(seen, row)
			}
		}
		if len(seen) != 1 || seen[0]["host"] != "declared.example" || seen[0]["up"] != int64(77) || total(*rows) != 5001 {
			t.Errorf("stage with %d kinds: %v", s.kinds, seen)
		}
	}
}

// TestAllowedNamesAreBoundedToo: a declared wildcard has any number of names.
func TestAllowedNamesAreBoundedToo(t *testing.T) {
	l, rows := sheet(t, stage{math.MaxInt64, 0, 0, 0, time.Hour})
	for i := range 5000 {
		k := denied(fmt.Sprintf("n%d.example", i))
		k.decision, k.reason = decisionAllow, reasonOK
		l.note(k, "", "", 0, 0, time.Now())
	}
	if l.flush(); len(*rows) != allowedKinds+1 || total(*rows) != 5000 {
		t.Errorf("%d lines, %d decisions", len(*rows), total(*rows))
	}
}

func TestLinesOfAnIntervalAreBounded(t *testing.T) {
	l, rows := sheet(t, stage{math.MaxInt64, 3, 20, 1000, time.Hour})
	for i := range 5000 {
		l.note(denied(fmt.Sprintf("n%d.example", i%500)), "", "", 0, 0, time.Now())
	}
	if len(*rows) != 20 {
		t.Errorf("%d lines before the end", len(*rows))
	}
	if l.flush(); total(*rows) != 5000 {
		t.Errorf("%d decisions", total(*rows))
	}
}

// TestALongFloodStaysWithinItsBytes: hosts as long and as hostile as they come, for many intervals.
func TestALongFloodStaysWithinItsBytes(t *testing.T) {
	l, rows := sheet(t, stages...)
	n := int64(0)
	for round := range 400 {
		for i := range 3000 {
			l.note(denied(fmt.Sprintf("%d-%d-%s", round, i, strings.Repeat(`"\`, 140))), "", "", 0, 0, time.Now())
			n++
		}
		l.flush()
	}
	if total(*rows) != n || l.spent > 30<<20 {
		t.Errorf("%d of %d decisions, %d bytes", total(*rows), n, l.spent)
	}
	before := len(*rows)
	for i := range 100000 {
		l.note(denied(fmt.Sprint(i)), "", "", 0, 0, time.Now())
	}
	if l.flush(); len(*rows) != before+1 {
		t.Errorf("%d lines at last", len(*rows)-before)
	}
}

func TestAnIntervalEndsByItself(t *testing.T) {
	l, rows := sheet(t, stage{math.MaxInt64, 1, 1, 10, 20 * time.Millisecond})
	l.note(denied("a.example"), "", "", 0, 0, time.Now())
	l.note(denied("a.example"), "", "", 0, 0, time.Now())
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		l.mu.Lock()
		told := len(*rows) == 2
		l.mu.Unlock()
		if told {
			return
		}
	}
	t.Error("what was counted is not told")
}

// inGroups is how many requests all groups count.
func inGroups() (n int) {
	groupsMu.Lock()
	defer groupsMu.Unlock()
	for g := range groups {
		g.mu.Lock()
		n += g.running
		g.mu.Unlock()
	}
	return n
}

// TestShutdownWaitsForTheLines is case P15: the line of a tunnel that is cut lies in the log when Shutdown returns,
// because its request counts until the line is written.
func TestShutdownWaitsForTheLines(t *testing.T) {
	l := startL1(t, nil, nil, m{"hello_timeout": "5s"}, nil)
	waiting := l.open(l.target)
	defer func() { _ = waiting.Close() }()
	written, counted := decided.write, 0
	decided.reset(func(fields []zap.Field) {
		time.Sleep(50 * time.Millisecond)
		counted = inGroups()
		written(fields)
	})
	defer decided.reset(nil)
	before := len(l.lines())
	Shutdown()
	if got := l.lines()[before:]; len(got) != 1 || got[0].Reason != reasonClosed || counted != 1 {
		t.Errorf("%+v, written while %d requests counted", got, counted)
	}
}

func TestShutdownTellsWhatWasCounted(t *testing.T) {
	l := startL1(t, nil, nil, nil, nil)
	decided.mu.Lock()
	decided.stages = stages
	decided.mu.Unlock()
	for range 70 {
		l.raw(connectTo("evil.example:443"))
	}
	Shutdown()
	got := l.lines()
	if len(got) != 51 || got[50].Count != 20 || got[50].Host != "evil.example" || got[50].Reason != reasonDeniedName {
		t.Errorf("%d lines, last %+v", len(got), got[len(got)-1])
	}
}
