// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// spoken is how one protocol answers.
type spoken struct {
	protocol, path, ask string
	begin, event, end   string // of a stream: first event, each further one, and the report
	whole               string // an answer that is no stream, without a report
	early               int64  // tokens of the request that the first event reports; 0: none
}

var protocols = map[string]spoken{
	"messages": {protocolAnthropic, "/v1/messages", least,
		`{"type":"message_start","message":{"usage":{"input_tokens":30,"output_tokens":1}}}`, `{"type":"content_block_delta"}`,
		`{"type":"message_delta","usage":{"output_tokens":9}}`, `{"content":[{"type":"text","text":"0123456789"}]}`, 30},
	"chat": {protocolOpenAI, "/v1/chat/completions", least,
		`{"choices":[{}],"usage":null}`, `{"choices":[{"delta":{"content":"x"}}]}`,
		`{"choices":[],"usage":{"prompt_tokens":30,"completion_tokens":9}}`, `{"choices":[{"message":{"content":"0123456789"}}]}`, 0},
	"responses": {protocolOpenAI, "/v1/responses", leastInput,
		`{"type":"response.created","response":{"usage":null}}`, `{"type":"response.output_text.delta","delta":"x"}`,
		`{"type":"response.completed","response":{"usage":{"input_tokens":30,"output_tokens":9}}}`, `{"output":[{"type":"message"}]}`, 0},
}

// input is what is known or estimated of the request when no report of the whole answer came.
func (s spoken) input() int64 {
	if s.early > 0 {
		return s.early
	}
	return int64(len(s.ask)+3) / 4
}

// stream answers with the documents as events, and then ends, breaks off, or waits until the client is gone.
func stream(then string, docs ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for _, doc := range docs {
			_, _ = fmt.Fprintf(w, "data: %s\n\n", doc)
		}
		_ = http.NewResponseController(w).Flush()
		switch then {
		case "break":
			panic(http.ErrAbortHandler)
		case "wait":
			<-q.Context().Done()
		}
	}
}

// hangUp asks, reads n lines of the answer, and goes.
func (f *bench) hangUp(path, body string, n int) {
	f.t.Helper()
	c := f.dial()
	_, _ = fmt.Fprintf(c, "POST %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		path, testToken, len(body), body)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		f.t.Fatal(err)
	}
	lines := bufio.NewReader(resp.Body)
	for range n {
		if _, err := lines.ReadString('\n'); err != nil {
			f.t.Fatal(err)
		}
	}
	_ = c.Close()
}

// TestUsageOfEveryEnding: in each protocol an answer that is reported counts as reported; one that its client leaves,
// that breaks off, or that nobody reports is estimated, says so, and is never counted as none.
func TestUsageOfEveryEnding(t *testing.T) {
	for name, s := range protocols {
		t.Run(name, func(t *testing.T) {
			f := startFront(t, s.protocol, m{"session": "t.ending-" + name})
			ask := func() { f.ask("POST "+s.path, s.ask) }
			endings := []struct {
				what, outcome string
				answer        http.HandlerFunc
				ask           func()
				input, output int64
				estimated     bool
			}{
				{"reported", reasonOK, stream("", s.begin, s.event, s.end), ask, 30, 9, false},
				{"not reported", reasonOK, stream("", s.begin, s.event, s.event), ask, s.input(), 3, true},
				{"broken off", frontBrokerError, stream("break", s.begin, s.event, s.event), ask, s.input(), 3, true},
				{"hung up", reasonClientGone, stream("wait", s.begin, s.event, s.event), func() { f.hangUp(s.path, s.ask, 6) }, s.input(), 3, true},
				{"whole, not reported", reasonOK, func(w http.ResponseWriter, _ *http.Request) {
					w.Header().Set("Content-Type", "application/json")
					_, _ = io.WriteString(w, s.whole)
				}, ask, int64(len(s.ask)+3) / 4, int64(len(s.whole)+3) / 4, true},
			}
			var input, output int64
			for n, e := range endings {
				f.answer(e.answer)
				e.ask()
				u := f.usages(n + 1)[n]
				if u.Outcome != e.outcome || u.Input != e.input || u.Output != e.output || u.Estimated != e.estimated {
					t.Errorf("%s: %+v, want %+v", e.what, u, e)
				}
				input, output = input+e.input, output+e.output
				if so := u.SoFar; so.Requests != int64(n+1) || so.Input != input || so.Output != output {
					t.Errorf("%s: the sums are %+v, want %d and %d", e.what, so, input, output)
				}
			}
		})
	}
}

// TestTheAgentCannotLowerTheCount: neither what it sends nor how it leaves takes anything from the sums.
func TestTheAgentCannotLowerTheCount(t *testing.T) {
	f := account(t, nil)
	reports := []string{`{"input_tokens":-100,"output_tokens":-100}`, `{"input_tokens":9223372036854775807,"output_tokens":1}`, `"none"`, `null`}
	var before int64
	for n, report := range reports { // what a provider echoes may be the agent's words
		f.answer(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"content":[{"type":"tool_use","input":{"usage":{"input_tokens":0}}}],"usage":`+report+`}`)
		})
		f.ask("POST /v1/messages", strings.Replace(least, `"m"`, `"usage"`, 1))
		so := f.usages(n + 1)[n].SoFar
		if so.Tokens() < before || so.Requests != int64(n+1) {
			t.Errorf("%s: %+v after %d tokens", report, so, before)
		}
		before = so.Tokens()
	}
}

// TestHangingUpBeforeAWholeAnswerSavesNothing: the provider makes it, and is paid for it, whoever is there to read it.
func TestHangingUpBeforeAWholeAnswerSavesNothing(t *testing.T) {
	f := account(t, nil)
	asked, gone := make(chan struct{}), make(chan struct{})
	f.answer(func(w http.ResponseWriter, q *http.Request) {
		close(asked)
		<-gone
		select {
		case <-q.Context().Done():
			t.Error("the broker's request ended with the client's")
		case <-time.After(100 * time.Millisecond):
		}
		reporting(w, q)
	})
	c := f.dial()
	_, _ = fmt.Fprintf(c, "POST /v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		testToken, len(least), least)
	<-asked
	_ = c.Close()
	close(gone)
	if u := f.usages(1)[0]; u.Input != 40 || u.Output != 20 || u.Cached != 5 || u.Estimated {
		t.Errorf("%+v", u)
	}
}
