// SPDX-License-Identifier: BSD-4-Clause

package front

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestUsage(t *testing.T) {
	for doc, want := range map[string]Usage{
		`{"content":[],"usage":{"input_tokens":10,"output_tokens":5,"cache_creation_input_tokens":3,"cache_read_input_tokens":2}}`: {10, 2, 3, 5, true, 0},
		`{"choices":[],"usage":{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":4}}}`:            {6, 4, 0, 5, true, 0},
		`{"usage":{"input_tokens":10,"output_tokens":5,"input_tokens_details":{"cached_tokens":4}},"user":null}`:                   {6, 4, 0, 5, true, 0},
		`{"content":[{"type":"tool_use","input":{"usage":{"input_tokens":1000}}}],"usage":{"input_tokens":1,"output_tokens":1}}`:   {1, 0, 0, 1, true, 0},
		`{"usage":{"input_tokens":1,"output_tokens":1},"x":{"usage":{"input_tokens":1000}}}`:                                       {1, 0, 0, 1, true, 0},
		`{"content":[{"text":"\"usage\":{\"input_tokens\":7}"}],"usage":{"input_tokens":-5,"output_tokens":99999999999999999}}`:    {0, 0, 0, 1 << 40, true, 0},
		`{"content":[]}`: {25, 0, 0, 4, false, 0}, `{"usage":null}`: {25, 0, 0, 4, false, 0}, `{"usage":7}`: {25, 0, 0, 3, false, 0}, `{"usage":{"a`: {25, 0, 0, 3, false, 0}, `"usage"`: {25, 0, 0, 2, false, 0},
	} {
		var m Meter
		if m.Document([]byte(doc)); m.Read(100, true) != want {
			t.Errorf("%s: %+v, want %+v", doc, m.Read(100, true), want)
		}
	}
}

// TestUsageInPieces: the end of an answer that is too large to be held says what was used, or its size does.
func TestUsageInPieces(t *testing.T) {
	text := `{"content":[{"input":{"usage":{"input_tokens":1000}}}],"text":"` + strings.Repeat("x", 3*maxTail) + `"`
	for end, want := range map[string]Usage{
		`,"usage":{"input_tokens":3,"output_tokens":4},"stop":null}`:   {3, 0, 0, 4, true, 0},
		`,"inner":{"usage":{"input_tokens":3,"output_tokens":4}}}`:     {Input: 25},
		`,"usage":{"input_tokens":3,"output_tokens":4},"stop":null}{}`: {Input: 25},
	} {
		for _, size := range []int{7, 4096, 1 << 20} {
			var m Meter
			for rest := []byte(text + end); len(rest) > 0; {
				n := min(size, len(rest))
				m.Piece(rest[:n])
				rest = rest[n:]
			}
			m.End()
			if !want.Reported {
				want.Output = int64(len(text)+len(end)+3) / 4
			}
			if got := m.Read(100, true); got != want {
				t.Errorf("%s in pieces of %d: %+v, want %+v", end, size, got, want)
			}
		}
	}
}

func TestUsageOfStreams(t *testing.T) {
	for stream, want := range map[string]Usage{
		`{"type":"message_start","message":{"usage":{"input_tokens":10,"output_tokens":1}}}|{"type":"content_block_delta"}|{"type":"message_delta","usage":{"output_tokens":7}}`: {10, 0, 0, 7, true, 0},
		`{"choices":[{}],"usage":null}|{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}`:                                                                         {3, 0, 0, 4, true, 0},
		`{"type":"response.created","response":{"usage":null}}|{"type":"response.completed","response":{"usage":{"input_tokens":3,"output_tokens":4}}}`:                          {3, 0, 0, 4, true, 0},
		`{"choices":[]}|{"choices":[]}|[DONE]`: {25, 0, 0, 3, false, 0},
	} {
		var m Meter
		for _, doc := range strings.Split(stream, "|") {
			m.Event([]byte(doc))
		}
		if got := m.Read(100, true); got != want {
			t.Errorf("%s: %+v, want %+v", stream, got, want)
		}
	}
	var m Meter
	m.Event([]byte(`{"type":"message_start","message":{"usage":{"input_tokens":10,"output_tokens":1}}}`))
	m.Event([]byte(`{}`))
	m.Event([]byte(`{}`))
	if got := m.Read(100, false); got != (Usage{10, 0, 0, 3, false, 0}) {
		t.Errorf("hung up: %+v", got)
	}
}

func TestLimits(t *testing.T) {
	a, now := &Account{}, time.Unix(1_000_000, 0)
	l := Limits{PerMinute: 3, Concurrent: 2, Tokens: 100}
	if a.Enter(l, now) != nil || a.Enter(l, now) != nil {
		t.Fatal("refused")
	}
	if no := a.Enter(l, now); no == nil || no.Key != "llm.limits.concurrent_requests" || no.Retry != time.Second {
		t.Errorf("%+v", no)
	}
	a.Leave(Usage{Input: 10}, 0, true, now)
	a.Leave(Usage{Output: 10}, 0, true, now)
	if a.Enter(l, now.Add(30*time.Second)) != nil {
		t.Error("refused")
	}
	a.Leave(Usage{}, 0, true, now)
	for _, after := range []int{30, 59} { // time does not go back
		want := 60 - after
		no := a.Enter(l, now.Add(time.Duration(after)*time.Second))
		if no == nil || no.Key != "llm.limits.requests_per_minute" || no.Retry != time.Duration(want)*time.Second || !strings.Contains(no.Text, "0 are left") {
			t.Errorf("after %d s: %+v", after, no)
		}
	}
	if no := a.Enter(l, now.Add(60*time.Second)); no != nil {
		t.Errorf("%+v", no)
	}
	a.Leave(Usage{Cached: 50, Written: 30}, 0, true, now)
	if no := a.Enter(l, now.Add(time.Hour)); no == nil || no.Key != "llm.limits.tokens_per_session" || no.Retry != 0 {
		t.Errorf("%+v", no)
	}
	if no := a.Enter(Limits{}, now.Add(time.Hour)); no != nil {
		t.Errorf("no limit: %+v", no)
	}
}

// TestAccountFile: what was spent survives the process, and a broken file is no fresh budget.
func TestAccountFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "state")
	a, err := Open("t.file", file)
	if err != nil {
		t.Fatal(err)
	}
	_ = a.Enter(Limits{}, time.Now())
	a.Leave(Usage{Input: 5, Output: 6}, 0, true, time.Now())
	_ = a.Enter(Limits{}, time.Now())
	a.Leave(Usage{Input: 1}, 0, true, time.Now())
	if again, err := Open("t.file", file); err != nil || again != a {
		t.Errorf("%v", err)
	}
	Save()
	delete(accounts, "t.file")
	b, err := Open("t.file", file)
	if err != nil || b.spent != (Spent{Requests: 2, Input: 6, Output: 6}) {
		t.Errorf("%v %+v", err, b)
	}
	delete(accounts, "t.file")
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open("t.file", file); err == nil {
		t.Error("a broken file is a fresh budget")
	}
}

// TestIterationsCount: a compaction is no part of the answer's own numbers, and is paid for.
func TestIterationsCount(t *testing.T) {
	var m Meter
	m.Document([]byte(`{"content":[],"usage":{"input_tokens":10,"output_tokens":5,"iterations":[{"type":"compaction","input_tokens":180000,"output_tokens":3500},{"type":"message","input_tokens":10,"output_tokens":5}]}}`))
	if u := m.Read(100, true); u.Input != 180010 || u.Output != 3505 || !u.Reported {
		t.Errorf("%+v", u)
	}
}

// TestAnswersInFewEventsAreEstimatedByTheirSize: who hangs up just before the report wins nothing by a provider that
// puts much into one event.
func TestAnswersInFewEventsAreEstimatedByTheirSize(t *testing.T) {
	var m Meter
	m.Event([]byte(`{"type":"message_start","message":{"usage":{"input_tokens":10,"output_tokens":1}}}`))
	m.Event([]byte(`{"delta":"` + strings.Repeat("x", 200_000) + `"}`))
	if u := m.Read(100, false); u.Output < 49_000 || u.Reported {
		t.Errorf("%+v", u)
	}
}
