// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"asf.sandbox/caddy/front"
)

// TestHostedAtTheFront is cases B3 and B4: what the provider or the broker would do or fetch is refused before the
// broker sees a byte, in the protocol's shape, with the manifest's key in header and log; a grant lets it through.
func TestHostedAtTheFront(t *testing.T) {
	f := startFront(t, protocolAnthropic, m{"models": []string{"claude-*"}, "hosted_tools": []string{"web_search"}})
	const chat = `"model":"claude-1","messages":[]`
	r := f.ask("POST /v1/messages", `{`+chat+`,"mcp_servers":[{"type":"url","url":"https://x.test"}]}`)
	f.refusedAs("mcp", r, 400, front.DeniedHosted)
	if r.header.Get("X-Asf-Key") != "llm.hosted_tools" || !strings.Contains(r.body, `\"mcp\" in llm.hosted_tools`) || !strings.Contains(r.body, "invalid_request_error") {
		t.Errorf("%+v", r)
	}
	if got := f.last(1); got.Reason != front.DeniedHosted || got.Key != "llm.hosted_tools" || got.Decision != "deny" || !strings.HasPrefix(got.Detail, "mcp_servers: ") {
		t.Errorf("%+v", got)
	}
	r = f.ask("POST /v1/messages", `{"model":"gpt-1","messages":[]}`)
	f.refusedAs("model", r, 404, front.DeniedModel)
	if r.header.Get("X-Asf-Key") != "llm.models" || !strings.Contains(r.body, "not_found_error") {
		t.Errorf("%+v", r)
	}
	r = f.ask("POST /v1/messages", `{"model":"claude-1\r\nX-Key: 1","messages":[]}`)
	f.refusedAs("model with line ends", r, 404, front.DeniedModel)
	f.refusedAs("parameter", f.ask("POST /v1/messages", `{`+chat+`,"api_base":"http://x.test"}`), 400, front.DeniedParameter)
	f.refusedAs("shape", f.ask("POST /v1/messages", `{"model":"claude-1","messages":[7]}`), 400, front.DeniedShape)
	f.refusedAs("twice", f.ask("POST /v1/messages", `{`+chat+`,"stream":false,"stream":true}`), 400, front.DeniedJSON)
	if r := f.ask("POST /v1/messages", `{`+chat+`,"tools":[{"type":"web_search_20250305","name":"web_search"}]}`); r.code != 200 || len(f.got()) != 1 {
		t.Errorf("granted: %+v", r)
	}
}

// TestModelsList: the front answers by itself, from the plan, in a form that both protocols' clients read.
func TestModelsList(t *testing.T) {
	f := startFront(t, protocolOpenAI, m{"models": []string{"gpt-a", "gpt-*", "gpt-b"}})
	r := f.ask("GET /v1/models", "")
	var list struct{ Data []struct{ ID, Object string } }
	if err := json.Unmarshal([]byte(r.body), &list); err != nil || r.code != 200 || len(list.Data) != 2 || list.Data[0].ID != "gpt-a" || list.Data[1].ID != "gpt-b" {
		t.Errorf("%+v", r)
	}
	if len(f.got()) != 0 {
		t.Error("the broker was asked")
	}
	if r := f.raw("GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"); r.code != 401 {
		t.Errorf("%+v", r)
	}
}

// TestExpect: a client that waits for leave gets it for what may come, and the refusal instead for what may not.
func TestExpect(t *testing.T) {
	f := startFront(t, protocolAnthropic, nil)
	head := "POST /v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nConnection: close\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n"
	c := f.dial()
	_, _ = fmt.Fprintf(c, head, testToken, len(least))
	if got := readHead(t, c); got != "HTTP/1.1 100 Continue\r\n\r\n" {
		t.Fatalf("%q", got)
	}
	_, _ = io.WriteString(c, least)
	if resp, err := http.ReadResponse(bufio.NewReader(c), nil); err != nil || resp.StatusCode != 200 {
		t.Errorf("%v %+v", err, resp)
	}
	f.got()
	for size, want := range map[int]int{2000: 413, 27: 401} {
		token := testToken
		if want == 401 {
			token = "wrong"
		}
		if r := f.raw(fmt.Sprintf(head, token, size)); r.code != want {
			t.Errorf("%+v", r)
		}
	}
}

// TestBodyMemory: bodies that are still coming share a bound; who does not fit is told to try again, and what was
// refused, abandoned or late gives its room back.
func TestBodyMemory(t *testing.T) {
	f := startFront(t, protocolAnthropic, m{"max_body": 100 << 10, "body_memory": 200 << 10, "body_timeout": "300ms"})
	head := fmt.Sprintf("POST /v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", testToken, 100<<10)
	for range 5 {
		slow := f.dial()
		_, _ = io.WriteString(slow, head+strings.Repeat(" ", 70<<10))
		r := readReply(t, slow)
		f.refusedAs("slow", r, 408, frontDeniedSlow)
	}
	gone := f.dial()
	_, _ = io.WriteString(gone, head+strings.Repeat(" ", 70<<10))
	_ = gone.Close()
	f.wait(6)
	one, two := f.dial(), f.dial()
	_, _ = io.WriteString(one, head)
	_, _ = io.WriteString(two, head)
	f.refusedAs("one", readReply(t, one), 408, frontDeniedSlow)
	f.refusedAs("two", readReply(t, two), 408, frontDeniedSlow)
	f.wait(8)
	if r := f.ask("POST /v1/messages", least+strings.Repeat(" ", 90<<10)); r.code != 200 {
		t.Errorf("%+v", r)
	}
}

// TestNoMemory: beyond the bound nothing is read.
func TestNoMemory(t *testing.T) {
	shared := &memory{limit: 100}
	body := &held{from: shared}
	if !body.grow(60) || body.grow(60) || shared.used.Load() != 60 {
		t.Errorf("%+v %d", body, shared.used.Load())
	}
	if body.free(); shared.used.Load() != 0 {
		t.Error(shared.used.Load())
	}
}

// TestRequestBytes: the manifest's own bound names its key.
func TestRequestBytes(t *testing.T) {
	f := startFront(t, protocolAnthropic, m{"request_bytes": 100})
	r := f.ask("POST /v1/messages", least+strings.Repeat(" ", 100))
	f.refusedAs("too large", r, 413, frontDeniedSize)
	if r.header.Get("X-Asf-Key") != "llm.limits.request_bytes" || !strings.Contains(r.body, "100 bytes") {
		t.Errorf("%+v", r)
	}
}

// TestNoTrace: of the broker's own failures the agent learns the message, not the program's inside.
func TestNoTrace(t *testing.T) {
	f := startFront(t, protocolAnthropic, nil)
	f.answer(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(500)
		_, _ = io.WriteString(w, `{"error":{"message":"it failed\nTraceback (most recent call last):\n  File \"/app/x.py\", line 1, in f\nKeyError: 'role'"}}`)
	})
	if r := f.ask("POST /v1/messages", least); r.code != 500 || !strings.Contains(r.body, `"it failed [trace]"`) || strings.Contains(r.body, "x.py") {
		t.Errorf("%+v", r)
	}
}
