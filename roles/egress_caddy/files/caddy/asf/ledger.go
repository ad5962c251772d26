// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"math"
	"sort"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"
)

// A workload can bring about any number of decisions, and a log that is full starts over (the engine's max-size). So
// what repeats is counted instead of written: an interval writes the first decisions of each kind as they are, and at
// its end one line per kind with the number of the others ("count"). A process that has written much counts sooner,
// in longer intervals; in the end it counts by reason alone. No decision is ever left out of the counts.
type stage struct {
	upTo  int64 // bytes that this process has written when the stage ends
	each  int   // lines of one kind in an interval
	lines int   // lines of all kinds together
	kinds int   // kinds of refusals that are told apart; the rest is counted by listener, decision and reason
	every time.Duration
}

// allowedKinds is how many kinds of what was let through are told apart in an interval, whatever was refused in it: a
// flood of refusals must not hide where something went.
const allowedKinds = 256

// stages keep a process below half of the log that the plan gives Caddy (64 MiB).
var stages = []stage{
	{16 << 20, 50, 1000, 256, time.Minute},
	{28 << 20, 0, 0, 64, 10 * time.Minute},
	{math.MaxInt64, 0, 0, 0, time.Hour},
}

// kind is what decisions have in common that are counted together. The strings are printable already.
type kind struct {
	session, listener, method, host, port, target string
	decision, reason, key                         string
	status                                        int
	others                                        bool // of many names, which are not told any more
}

func (k kind) withoutNames() kind {
	return kind{session: k.session, listener: k.listener, decision: k.decision, reason: k.reason, others: true}
}

func (k kind) fields() []zap.Field {
	out := []zap.Field{zap.String("session", k.session), zap.String("listener", k.listener)}
	for _, f := range []struct{ name, value string }{
		{"method", k.method}, {"host", k.host}, {"port", k.port}, {"target", k.target}, {"key", k.key},
	} {
		if f.value != "" {
			out = append(out, zap.String(f.name, f.value))
		}
	}
	if k.status != 0 {
		out = append(out, zap.Int("status", k.status))
	}
	return append(out, zap.String("decision", k.decision), zap.String("reason", k.reason))
}

// lineSize is an upper bound of a line's length in the log, with what the engine writes before it.
func (k kind) lineSize(detail string) int64 {
	size := 400
	for _, s := range []string{k.host, k.target, k.key, detail} {
		size += len(strconv.Quote(s))
	}
	return int64(size)
}

type tally struct {
	seen                int
	counted             int64
	up, down, ms        int64
	firstTime, lastTime time.Time
}

type ledger struct {
	mu      sync.Mutex
	stages  []stage
	tallies map[kind]*tally
	allowed int // kinds that are told apart in this interval
	denied  int
	lines   int
	spent   int64
	running *time.Timer
	write   func(fields []zap.Field)
}

func newLedger() *ledger {
	return &ledger{stages: stages, tallies: map[kind]*tally{},
		write: func(fields []zap.Field) { logger().Info("decision", fields...) }}
}

// decided is the one of this process: reloads and listeners share what may be written.
var decided = newLedger()

func (l *ledger) stage() stage {
	for _, s := range l.stages {
		if l.spent < s.upTo {
			return s
		}
	}
	return l.stages[len(l.stages)-1]
}

// note writes a decision, or counts it.
func (l *ledger) note(k kind, detail, addr string, up, down int64, start time.Time) {
	now := time.Now()
	ms := now.Sub(start).Milliseconds()
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.stage()
	if l.running == nil {
		l.running = time.AfterFunc(s.every, l.flush)
	}
	t, known := l.tallies[k]
	if !known {
		told, most := &l.denied, s.kinds
		if k.decision == decisionAllow {
			told, most = &l.allowed, allowedKinds
		}
		if *told >= most {
			k = k.withoutNames()
		} else {
			*told++
		}
		if t = l.tallies[k]; t == nil {
			t = &tally{}
			l.tallies[k] = t
		}
	}
	t.seen++
	if !k.others && t.seen <= s.each && l.lines < s.lines {
		l.lines++
		l.spent += k.lineSize(detail)
		l.write(append(k.fields(), zap.String("detail", detail), zap.String("addr", addr),
			zap.Int64("up", up), zap.Int64("down", down), zap.Int64("ms", ms)))
		return
	}
	if t.counted == 0 {
		t.firstTime = now
	}
	t.counted++
	t.up, t.down, t.ms, t.lastTime = t.up+up, t.down+down, t.ms+ms, now
}

// flush writes what was counted and starts a new interval with the next decision.
func (l *ledger) flush() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running != nil {
		l.running.Stop()
	}
	for _, k := range l.counted() {
		t := l.tallies[k]
		fields := append(k.fields(), zap.Int64("count", t.counted), zap.Bool("others", k.others),
			zap.Float64("first", unixTime(t.firstTime)), zap.Float64("last", unixTime(t.lastTime)),
			zap.Int64("up", t.up), zap.Int64("down", t.down), zap.Int64("ms", t.ms))
		l.spent += k.lineSize("") + 100
		l.write(fields)
	}
	l.tallies, l.allowed, l.denied, l.lines, l.running = map[kind]*tally{}, 0, 0, 0, nil
}

// counted are the kinds of which some were not written, those with most first.
func (l *ledger) counted() []kind {
	var out []kind
	for k, t := range l.tallies {
		if t.counted > 0 {
			out = append(out, k)
		}
	}
	sort.Slice(out, func(i, j int) bool { return l.tallies[out[i]].counted > l.tallies[out[j]].counted })
	return out
}

func unixTime(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }

// Flush writes the number of the decisions that were counted and not yet told. It is for a program's last moment.
func Flush() { decided.flush() }
