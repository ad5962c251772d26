// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"asf.sandbox/caddy/front"
)

// used is one usage line.
type used struct {
	Msg, Model, Outcome string
	Status              int
	Input               int64      `json:"input_tokens"`
	Output              int64      `json:"output_tokens"`
	Cached              int64      `json:"cached_tokens"`
	Cost                *front.USD `json:"cost_usd"`
	Estimated           bool
	FirstMs             *int64      `json:"first_ms"`
	SoFar               front.Spent `json:"so_far"`
}

// usages waits for n usage lines.
func (p *proxy) usages(n int) []used {
	p.t.Helper()
	for deadline := time.Now().Add(5 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		raw, _ := os.ReadFile(p.log)
		var out []used
		for _, s := range strings.Split(string(raw), "\n") {
			var u used
			if json.Unmarshal([]byte(s), &u) == nil && u.Msg == "usage" {
				out = append(out, u)
			}
		}
		if len(out) == n {
			return out
		}
		if time.Now().After(deadline) {
			p.t.Fatalf("%d usage lines, want %d: %+v", len(out), n, out)
		}
	}
}

// account is a session of its own for one test, as accounts outlive configurations.
func account(t *testing.T, more m) *bench {
	t.Helper()
	all := m{"session": "t." + strings.ToLower(t.Name()), "state_file": filepath.Join(t.TempDir(), "state")}
	for k, v := range more {
		all[k] = v
	}
	return startFront(t, protocolAnthropic, all)
}

func reporting(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"content":[],"usage":{"input_tokens":40,"output_tokens":20,"cache_read_input_tokens":5}}`)
}

// TestTokenBudget: counted from what the provider reports, kept over a reload, and 429 past it in words that clients
// understand, without a second try.
func TestTokenBudget(t *testing.T) {
	f := account(t, m{"limits": m{"tokens_per_session": 100}})
	f.answer(reporting)
	for range 2 {
		if r := f.ask("POST /v1/messages", least); r.code != 200 || r.header.Get("Content-Length") == "" {
			t.Fatalf("%+v", r)
		}
	}
	f.got()
	server := serverConfig(f.addr, "L2", f.handler, nil)
	if err := loadConfig(caddyConfig(f.log, server)); err != nil { // the account outlives the configuration
		t.Fatal(err)
	}
	r := f.ask("POST /v1/messages", least)
	for range 20 { // a reload resets what waits at the old listener
		if r.code != 0 {
			break
		}
		r = f.ask("POST /v1/messages", least)
	}
	f.refusedAs("budget", r, 429, "limit-tokens")
	if r.header.Get("X-Should-Retry") != "false" || r.header.Get("Retry-After") != "" || r.header.Get("X-Asf-Key") != "llm.limits.tokens_per_session" ||
		!strings.Contains(r.body, "rate_limit_error") || !strings.Contains(r.body, "130 of the session's 100 tokens are used, 0 are left") {
		t.Errorf("%+v", r)
	}
	got := f.usages(2)
	if u := got[1]; u.Model != "m" || u.Status != 200 || u.Outcome != "ok" || u.Input != 40 || u.Output != 20 || u.Cached != 5 || u.Estimated || u.FirstMs == nil ||
		u.SoFar != (front.Spent{Requests: 2, Input: 80, Cached: 10, Output: 40}) {
		t.Errorf("%+v", u)
	}
}

// TestRequestsPerMinute: refused requests do not count, and the refusal says when to come again.
func TestRequestsPerMinute(t *testing.T) {
	f := account(t, m{"limits": m{"requests_per_minute": 2}})
	for range 3 {
		f.refusedAs("shape", f.ask("POST /v1/messages", `{"model":"m"}`), 400, front.DeniedShape)
	}
	for range 2 {
		if r := f.ask("POST /v1/messages", least); r.code != 200 {
			t.Fatalf("%+v", r)
		}
	}
	f.got()
	r := f.ask("POST /v1/messages", least)
	f.refusedAs("rate", r, 429, "limit-requests")
	if r.header.Get("Retry-After") == "" || r.header.Get("X-Asf-Key") != "llm.limits.requests_per_minute" {
		t.Errorf("%+v", r)
	}
	if r := f.ask("GET /v1/models", ""); r.code != 200 {
		t.Errorf("the list costs nothing: %+v", r)
	}
}

// TestHangUp: a stream that its client leaves is counted as far as it is known, and gives its place back.
func TestHangUp(t *testing.T) {
	f := account(t, m{"limits": m{"concurrent_requests": 1}})
	step := make(chan struct{})
	f.answer(func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		_, _ = io.WriteString(w, `data: {"type":"message_start","message":{"usage":{"input_tokens":30,"output_tokens":1}}}`+"\n\n")
		for range 4 {
			_, _ = fmt.Fprint(w, "data: {\"type\":\"content_block_delta\"}\n\n")
		}
		_ = http.NewResponseController(w).Flush()
		select {
		case <-step:
		case <-q.Context().Done():
		}
	})
	c := f.dial()
	_, _ = fmt.Fprintf(c, "POST /v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", testToken, len(least), least)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(resp.Body)
	for range 10 {
		if _, err := lines.ReadString('\n'); err != nil {
			t.Fatal(err)
		}
	}
	f.got()
	r := f.ask("POST /v1/messages", least)
	f.refusedAs("second", r, 429, "limit-concurrency")
	if r.header.Get("Retry-After") != "1" {
		t.Errorf("%+v", r)
	}
	_ = c.Close()
	if u := f.usages(1)[0]; u.Outcome != reasonClientGone || u.Input != 30 || u.Output != 5 || !u.Estimated {
		t.Errorf("%+v", u)
	}
	f.answer(reporting)
	if r := f.ask("POST /v1/messages", least); r.code != 200 {
		t.Errorf("the place was not given back: %+v", r)
	}
}

// TestNothingUsed: a provider's refusal and a count of tokens use none.
func TestNothingUsed(t *testing.T) {
	f := account(t, nil)
	f.answer(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(500) })
	f.ask("POST /v1/messages", least)
	f.answer(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, `{"input_tokens":10}`) })
	f.ask("POST /v1/messages/count_tokens", least)
	for _, u := range f.usages(2) {
		if u.Input+u.Output+u.Cached != 0 || u.Estimated {
			t.Errorf("%+v", u)
		}
	}
}

// TestLargeAnswer: beyond what is held as a whole, an answer is passed on in pieces, and none is lost.
func TestLargeAnswer(t *testing.T) {
	f := account(t, nil)
	want := strings.Repeat("0123456789abcdef", (maxWhole+300000)/16)
	f.answer(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, want) })
	if r := f.ask("POST /v1/messages", least); r.code != 200 || r.body != want {
		t.Errorf("%d bytes of %d", len(r.body), len(want))
	}
	if u := f.usages(1)[0]; !u.Estimated || u.Input == 0 || u.Output != int64(len(want)+3)/4 {
		t.Errorf("%+v", u)
	}
	f.answer(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"text":"`+want+`","usage":{"input_tokens":7,"output_tokens":8}}`)
	})
	f.ask("POST /v1/messages", least)
	if u := f.usages(2)[1]; u.Estimated || u.Input != 7 || u.Output != 8 {
		t.Errorf("%+v", u)
	}
}

// TestStateFileFailsClosed: a budget that cannot be read is no fresh one.
func TestStateFileFailsClosed(t *testing.T) {
	h := m{"handler": "asf_inference", "session": "t.closed", "protocol": "openai", "upstream": "127.0.0.1:1", "token_file": secretFile(t, testToken),
		"key_file": secretFile(t, testMaster), "state_file": secretFile(t, "{")}
	if err := loadConfig(caddyConfig(t.TempDir()+"/log", serverConfig("127.0.0.1:0", "L2", h, nil))); err == nil {
		t.Error("loaded")
	}
}

// TestMoney: what a model costs is counted by the list, the limit answers as the other budgets do, and what cannot be
// counted is refused before the broker sees it.
func TestMoney(t *testing.T) {
	f := account(t, m{"provider": "anthropic", "limits": m{"usd_per_session": 0.0008}})
	f.answer(reporting) // 40 and 5 cached tokens in, 20 out
	known := strings.Replace(least, `"m"`, `"claude-sonnet-4-5"`, 1)
	price, _ := front.PriceOf("anthropic", "claude-sonnet-4-5")
	cost := price.Cost(front.Usage{Input: 40, Cached: 5, Output: 20})
	for n := range 2 {
		if r := f.ask("POST /v1/messages", known); r.code != 200 {
			t.Fatalf("%d: %+v", n, r)
		}
	}
	f.got()
	f.refusedAs("limit", f.ask("POST /v1/messages", known), 429, "limit-usd")
	f.refusedAs("unknown", f.ask("POST /v1/messages", least), 400, "denied-price")
	dear := strings.Replace(known, `{`, `{"service_tier":"priority",`, 1)
	f.refusedAs("tier", f.ask("POST /v1/messages", dear), 400, "denied-price")
	lines := f.usages(2)
	if last := lines[1]; last.Cost == nil || *last.Cost != cost || last.SoFar.Cost != 2*cost || last.SoFar.Unpriced != 0 {
		t.Errorf("%+v, each costs %s", last, cost)
	}
}

// TestWithoutALimitOfMoney: what has no price passes, is told apart, and is not called free.
func TestWithoutALimitOfMoney(t *testing.T) {
	f := account(t, m{"provider": "anthropic"})
	f.answer(reporting)
	if r := f.ask("POST /v1/messages", least); r.code != 200 {
		t.Fatalf("%+v", r)
	}
	if one := f.usages(1)[0]; one.Cost != nil || one.SoFar.Unpriced != 1 {
		t.Errorf("%+v", one)
	}
}
