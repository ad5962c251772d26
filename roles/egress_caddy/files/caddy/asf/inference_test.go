// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"asf.sandbox/caddy/front"
	"github.com/caddyserver/caddy/v2"
)

const (
	testToken  = "session-token-0123456789abcdef"
	testMaster = "master-key-0123456789abcdef-xyz"

	least      = `{"model":"m","messages":[]}` // of Messages and Chat Completions
	leastInput = `{"model":"m"}`               // of Responses
)

// seen is one request as the broker got it.
type seen struct {
	method, target, body string
	header               http.Header
	length               int64
}

// bench is an inference front with a broker of the test's own behind it.
type bench struct {
	*proxy
	broker   *httptest.Server
	upstream string
	handler  m
	mu       sync.Mutex
	requests []seen
	serve    http.HandlerFunc // the broker's answer; the body has been read
}

func secretFile(t *testing.T, text string) string {
	t.Helper()
	f := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

func startFront(t *testing.T, protocol string, more m) *bench {
	t.Helper()
	f := &bench{}
	f.broker = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		b, _ := io.ReadAll(q.Body)
		f.mu.Lock()
		f.requests = append(f.requests, seen{q.Method, q.RequestURI, string(b), q.Header.Clone(), q.ContentLength})
		serve := f.serve
		f.mu.Unlock()
		if serve != nil {
			serve(w, q)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"ok":true}`)
	}))
	t.Cleanup(f.broker.Close)
	f.upstream = strings.TrimPrefix(f.broker.URL, "http://")
	f.handler = m{"handler": "asf_inference", "session": "claude.main", "protocol": protocol, "upstream": f.upstream,
		"token_file": secretFile(t, testToken+"\n"), "key_file": secretFile(t, testMaster+"\r\n"), "max_body": 1000}
	for k, v := range more {
		f.handler[k] = v
	}
	f.proxy = startCaddy(t, "L2", f.handler, nil)
	return f
}

func (f *bench) answer(h http.HandlerFunc) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.serve = h
}

// got returns what reached the broker since the last call.
func (f *bench) got() []seen {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.requests
	f.requests = nil
	return out
}

// ask sends one request with the session's token, a JSON body when there is one, and more header lines.
func (f *bench) ask(line, body string, headers ...string) reply {
	f.t.Helper()
	head := []string{line + " HTTP/1.1", "Host: front:4000", "Authorization: Bearer " + testToken, "Connection: close"}
	if body != "" {
		head = append(head, "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(body)))
	}
	return f.raw(strings.Join(append(head, headers...), "\r\n") + "\r\n\r\n" + body)
}

// refusedAs checks an answer of the front's own, and that it says nothing secret.
func (f *bench) refusedAs(what string, r reply, status int, reason string) {
	f.t.Helper()
	if r.code != status || r.header.Get("X-Asf-Inference") != reason || r.header.Get("Server") != "" {
		f.t.Errorf("%s: %d %v %s, want %d %s", what, r.code, r.header, r.body, status, reason)
	}
	var v map[string]any
	if err := json.Unmarshal([]byte(r.body), &v); err != nil || v["error"] == nil {
		f.t.Errorf("%s: body %q is no error of the protocol", what, r.body)
	}
	f.silent(what, r)
	if seen := f.got(); len(seen) != 0 {
		f.t.Errorf("%s: reached the broker: %+v", what, seen)
	}
}

func (f *bench) silent(what string, r reply) {
	f.t.Helper()
	all := fmt.Sprint(r)
	if strings.Contains(all, testToken) || strings.Contains(all, testMaster) {
		f.t.Errorf("%s: a secret in %s", what, all)
	}
}

// spellingsOf are ways to write a path that some router takes for the same one.
func spellingsOf(path string) []string {
	last := strings.LastIndexByte(path, '/')
	out := []string{
		"/" + path, path + "/", strings.ToUpper(path), path + "%20", path + "%00", path + ";x", path + "?", path + "?x=1", path + "#x",
		path[:last] + "//" + path[last+1:], path[:last] + "/./" + path[last+1:], path[:last] + "/%2e/" + path[last+1:],
		path[:last] + "%2f" + path[last+1:], path[:last] + "\\" + path[last+1:], "/x/.." + path, "/v1/models/.." + path, "/x/..%2f" + path[1:],
		fmt.Sprintf("%s%%%02x%s", path[:len(path)-2], path[len(path)-2], path[len(path)-1:]), "http://front:4000" + path, "https://evil.test" + path,
	}
	return out
}

// TestRoutes is case B1: with the session's token, whatever is not an inference route of the protocol, in any
// spelling and with any method, is refused here and never seen by the broker.
func TestRoutes(t *testing.T) {
	for _, protocol := range []string{protocolAnthropic, protocolOpenAI} {
		t.Run(protocol, func(t *testing.T) {
			f := startFront(t, protocol, nil)
			for _, path := range adminRoutes(protocol) {
				for _, line := range append([]string{"GET " + path, "POST " + path}, prefixed("POST ", spellingsOf(path))...) {
					f.refusedFrom(line)
				}
			}
			own := routesFor(t, protocol)
			for line, r := range own {
				method, path, _ := strings.Cut(line, " ")
				for _, s := range spellingsOf(path) {
					f.refusedFrom(method + " " + s)
				}
				for _, other := range []string{"GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE", "post", "CONNECT"} {
					if _, ok := own[other+" "+path]; !ok {
						f.refusedFrom(other + " " + path)
					}
				}
				if r.Body != "" {
					f.refusedFrom(method + " " + path + "?beta=true&beta=true")
					f.refusedFrom(method + " " + path + "?Beta=true")
				}
			}
		})
	}
}

func routesFor(t *testing.T, protocol string) map[string]*front.Endpoint {
	t.Helper()
	out, err := routesOf(protocol)
	if err != nil || len(out) != 3 {
		t.Fatalf("%v %v", out, err)
	}
	return out
}

func prefixed(prefix string, list []string) []string {
	var out []string
	for _, s := range list {
		out = append(out, prefix+s)
	}
	return out
}

// adminRoutes are the broker's own (LiteLLM's management, pass-through and documentation), and the other protocol's.
func adminRoutes(protocol string) []string {
	out := []string{
		"/key/generate", "/key/info", "/model/new", "/model/info", "/v1/model/info", "/config/update", "/config/yaml", "/health", "/health/liveliness",
		"/docs", "/openapi.json", "/user/new", "/sso/key/generate", "/anthropic/v1/messages", "/openai/v1/responses", "/bedrock/x", "/vertex_ai/x",
		"/v1/files", "/v1/batches", "/v1/embeddings", "/v1/models/x", "/mcp", "/metrics", "/ui", "/v1/messages/batches", "/v1/responses/resp_1",
	}
	all, _ := front.Endpoints()
	for line, e := range all {
		if e.Protocol != protocol && e.Protocol != "both" {
			out = append(out, strings.TrimPrefix(line, "POST "))
		}
	}
	return out
}

// refusedFrom sends a request that must not pass, with a valid body for POST.
func (f *bench) refusedFrom(line string) {
	f.t.Helper()
	body := ""
	if strings.HasPrefix(line, "POST") {
		body = least
	}
	r := f.ask(line, body)
	if r.code < 400 {
		f.t.Errorf("B1: %s: %+v", line, r)
	}
	f.silent(line, r)
	if seen := f.got(); len(seen) != 0 {
		f.t.Errorf("B1: %s reached the broker as %+v", line, seen)
	}
}

// TestToken: the forms in which the session's token counts, and all others.
func TestToken(t *testing.T) {
	f := startFront(t, protocolAnthropic, nil)
	send := func(lines ...string) reply {
		head := []string{"POST /v1/messages HTTP/1.1", "Host: x", "Connection: close", "Content-Type: application/json", fmt.Sprintf("Content-Length: %d", len(least))}
		return f.raw(strings.Join(append(head, lines...), "\r\n") + "\r\n\r\n" + least)
	}
	bearer, key := "Authorization: Bearer "+testToken, "x-api-key: "+testToken
	for _, lines := range [][]string{{bearer}, {key}, {bearer, key}, {"authorization: bearer " + testToken}, {"X-API-KEY:   " + testToken + "  "}} {
		if r := send(lines...); r.code != 200 || len(f.got()) != 1 {
			t.Errorf("%q: %+v", lines, r)
		}
	}
	for _, lines := range [][]string{
		{}, {"Authorization: Bearer"}, {"Authorization: Bearer "}, {"x-api-key:"}, {"x-api-key: *"}, {"Authorization: " + testToken},
		{"Authorization: Basic " + testToken}, {"Authorization: Bearer  " + testToken}, {"Authorization: Bearer " + testToken + " x"},
		{"Authorization: Bearer " + testToken[:len(testToken)-1]}, {"Authorization: Bearer " + testToken + "x"}, {"x-api-key: " + strings.ToUpper(testToken)},
		{"Authorization: Bearer " + testMaster}, {"x-api-key: " + testMaster}, {bearer, "x-api-key: other"}, {key, "Authorization: Bearer other"},
		{bearer, bearer}, {key, key}, {bearer, "Authorization: Bearer other"}, {"Proxy-Authorization: Bearer " + testToken}, {"Cookie: token=" + testToken},
		{"x-litellm-api-key: " + testToken}, {"api-key: " + testToken}, {"x_api_key: " + testToken},
	} {
		f.refusedAs(fmt.Sprintf("%q", lines), send(lines...), 401, frontDeniedToken)
	}
	if r := f.raw("POST /key/generate HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"); r.code != 401 || !strings.Contains(r.body, "authentication_error") {
		t.Errorf("without the token nobody learns what is served: %+v", r)
	}
}

// manyHeaders are what a client may send; seven of them go on.
var manyHeaders = []string{
	"anthropic-version: 2023-06-01", "anthropic-beta: effort-2025-11-24, mcp-client-2025-04-04,unheard-of-2099-01-01", "anthropic-beta: context-1m-2025-08-07", "openai-beta: unheard=v1", "x-stainless-lang: js",
	"User-Agent: client/1", "Accept: text/event-stream", "Cookie: a=b", "X-Forwarded-For: 1.2.3.4", "Forwarded: for=x", "Via: x", "Upgrade: websocket",
	"x-litellm-api-base: http://evil.test", "x-litellm-tags: x", "Accept-Encoding: gzip", "Origin: http://x", "Proxy-Authorization: x", "anthropic-dangerous: x",
	"X-HTTP-Method-Override: DELETE", "X-Original-URL: /key/generate", "Openai-Organization: x", "TE: trailers",
}

// talkative is a broker that says more than the agent may know.
func talkative(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	for _, name := range []string{"Set-Cookie", "X-Litellm-Model-Id", "X-Litellm-Key-Spend", "Llm_provider-Server", "Anthropic-Organization-Id", "Location", "Via"} {
		h.Set(name, "broker")
	}
	h.Set("Content-Type", "application/json; charset=utf-8")
	h.Set("Request-Id", "req_1")
	h.Set("Anthropic-Ratelimit-Requests-Remaining", "7")
	h.Set("X-Request-Id", "a "+testMaster)
	h.Set("Retry-After", strings.Repeat("1", maxHeaderValue+1))
	_, _ = io.WriteString(w, `{"key":"`+testMaster+`"}`)
}

// TestForwarded: what goes on and what comes back is what the lists name, and the key is swapped.
func TestForwarded(t *testing.T) {
	f := startFront(t, protocolAnthropic, nil)
	f.answer(talkative)
	r := f.ask("POST /v1/messages?beta=true", least, manyHeaders...)
	seen := f.got()
	if r.code != 200 || len(seen) != 1 {
		t.Fatalf("%+v %+v", r, seen)
	}
	want := http.Header{"Accept": {"text/event-stream"}, "Content-Type": {"application/json"}, "User-Agent": {"client/1"}, "Anthropic-Version": {"2023-06-01"},
		"Anthropic-Beta": {"effort-2025-11-24,context-1m-2025-08-07"}, "X-Stainless-Lang": {"js"}, "Authorization": {"Bearer " + testMaster}, "Content-Length": {"27"}}
	if got := seen[0]; got.method+" "+got.target != "POST /v1/messages?beta=true" || got.body != least || fmt.Sprint(got.header) != fmt.Sprint(want) {
		t.Errorf("broker got %+v", got)
	}
	for name := range r.header {
		if !listed(name, responseHeaders) && name != "Connection" && name != "Date" && name != "Content-Length" {
			t.Errorf("%s came back", name)
		}
	}
	if r.header.Get("Request-Id") != "req_1" || r.header.Get("Anthropic-Ratelimit-Requests-Remaining") != "7" ||
		r.header.Get("X-Request-Id")+r.header.Get("Retry-After") != "" || r.body != `{"key":"[redacted]"}` {
		t.Errorf("%+v", r)
	}
	if got := f.last(1); got.Decision != "allow" || got.Reason != "ok" || got.Status != 200 || got.Target != "/v1/messages?[cut]" || got.Up != 27 || got.Listener != "L2" {
		t.Errorf("%+v", got)
	}
}

// post sends a body with header lines of the test's own.
func (f *bench) post(body string, lines ...string) reply {
	f.t.Helper()
	head := append([]string{"POST /v1/responses HTTP/1.1", "Host: x", "Connection: close", "Authorization: Bearer " + testToken}, lines...)
	return f.raw(strings.Join(head, "\r\n") + "\r\n\r\n" + body)
}

// TestBodies: type, encoding and framing.
func TestBodies(t *testing.T) {
	f := startFront(t, protocolOpenAI, nil)
	raw := f.post
	const length = "Content-Length: 13"
	for _, kind := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/json; charset=utf-16",
		"application/json; x=y", "application/jsonx", "", "application/json, text/plain", "application/json\r\nContent-Type: text/plain"} {
		f.refusedAs("type "+kind, raw(leastInput, length, "Content-Type: "+kind), 415, frontDeniedType)
	}
	f.refusedAs("no type", raw(leastInput, length), 415, frontDeniedType)
	kind := "Content-Type: application/json; charset=UTF-8"
	for _, e := range []string{"gzip", "br", "identity, gzip", "zstd"} {
		f.refusedAs("encoding "+e, raw(leastInput, length, kind, "Content-Encoding: "+e), 415, frontDeniedEncoding)
	}
	f.refusedAs("no body", raw("", kind, "Content-Length: 0"), 400, frontDeniedBody)
	if r := raw(leastInput, kind, length, "Content-Encoding: identity"); r.code != 200 || len(f.got()) != 1 {
		t.Errorf("identity: %+v", r)
	}
	f.refusedAs("GET with a body", f.ask("GET /v1/models", "{}"), 400, frontDeniedBody)
	r := raw("d\r\n"+leastInput+"\r\n0\r\n\r\n", kind, "Content-Length: 3", "Transfer-Encoding: chunked") // two framings: the server drops one, or refuses
	if s := f.got(); r.code == 200 && (len(s) != 1 || s[0].body != leastInput || s[0].length != 13) {
		t.Errorf("ambiguous framing: %+v %+v", r, s)
	}
}

// TestSizes: the limit holds with a length and without one.
func TestSizes(t *testing.T) {
	f := startFront(t, protocolOpenAI, nil)
	raw, kind := f.post, "Content-Type: application/json"
	big := `{"model":"m","input":"` + strings.Repeat("x", 976) + `"}` + " "
	f.refusedAs("too large", raw(big, kind, "Content-Length: 1001"), 413, frontDeniedSize)
	r := raw("3e9\r\n"+big+"\r\n0\r\n\r\n", kind, "Transfer-Encoding: chunked")
	f.refusedAs("chunked, too large", r, 413, frontDeniedSize)
	if r := raw("3e8\r\n"+big[:1000]+"\r\n0\r\n\r\n", kind, "Transfer-Encoding: chunked"); r.code != 200 {
		t.Errorf("chunked, at the limit: %+v", r)
	}
	if got := f.got(); len(got) != 1 || got[0].body != big[:1000] {
		t.Errorf("%+v", got)
	}
}

// TestErrorsOfTheBroker is case B5: whatever an upstream's error holds, neither key, master key nor token comes back.
func TestErrorsOfTheBroker(t *testing.T) {
	const provider = "sk-ant-api03-Zm9vYmFyYmF6cXV4-AA"
	f := startFront(t, protocolAnthropic, nil)
	n := 0
	for _, status := range []int{400, 401, 403, 404, 413, 429, 500, 502, 503, 529, 301, 302} {
		for _, body := range errorTexts(provider) {
			f.answer(func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("X-Request-Id", testMaster)
				w.Header().Set("Location", "http://198.18.0.6:4000/"+provider)
				w.Header().Set("WWW-Authenticate", provider)
				w.WriteHeader(status)
				_, _ = io.WriteString(w, body)
			})
			r := f.ask("POST /v1/messages", least)
			n++
			f.silent(body, r)
			if strings.Contains(fmt.Sprint(r), provider) || strings.Contains(fmt.Sprint(r), "198.18") {
				t.Errorf("B5: %d %s: %+v", status, body, r)
			}
			want := status
			if status < 400 {
				want = 502
			}
			if r.code != want || r.header.Get("X-Asf-Inference") != frontBrokerError || !strings.Contains(r.body, `"type":"error"`) {
				t.Errorf("%d %s: %+v", status, body, r)
			}
		}
	}
	raw, _ := os.ReadFile(f.log)
	if s := string(raw); strings.Contains(s, provider) || strings.Contains(s, testMaster) || strings.Contains(s, testToken) {
		t.Error("B5: a secret is in the log")
	}
	if got := f.last(n); got.Reason != frontBrokerError || got.Decision != "allow" {
		t.Errorf("%+v", got)
	}
}

func errorTexts(provider string) []string {
	quoted := func(shape, s string) string { return strings.ReplaceAll(shape, "%", s) }
	var out []string
	for _, s := range []string{provider, testMaster, testToken, "Bearer " + testMaster} {
		for _, shape := range []string{
			`{"error":{"message":"Incorrect API key provided: %.","type":"%","code":"%","param":"%"}}`, `{"error":"key % is wrong"}`,
			`{"detail":"bad %"}`, `{"detail":[{"msg":"%"}]}`, `{"type":"error","error":{"type":"authentication_error","message":"invalid x-api-key %"}}`,
			`plain %`, `<html>%</html>`, `{"error":{"message":"x","%":"%"}}`,
		} {
			out = append(out, quoted(shape, s))
		}
	}
	return append(out, "", "{", `{"error":null}`, strings.Repeat("x", maxErrorBody+1))
}

// TestErrorKeepsItsMeaning: clients act on status, type, code, message and Retry-After of an error.
func TestErrorKeepsItsMeaning(t *testing.T) {
	f := startFront(t, protocolOpenAI, nil)
	f.answer(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "9")
		w.WriteHeader(429)
		_, _ = io.WriteString(w, `{"error":{"message":"Rate limit reached for gpt-5-mini","type":"tokens","code":"rate_limit_exceeded"}}`)
	})
	r := f.ask("POST /v1/chat/completions", least)
	want := `"error":{"message":"Rate limit reached for gpt-5-mini","type":"tokens","param":null,"code":"rate_limit_exceeded"}`
	if r.code != 429 || r.header.Get("Retry-After") != "9" || !strings.Contains(r.body, want) {
		t.Errorf("%+v", r)
	}
}

// TestOpaque: an answer that cannot be looked through is not relayed.
func TestOpaque(t *testing.T) {
	f := startFront(t, protocolAnthropic, nil)
	f.answer(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		_, _ = io.WriteString(w, "opaque")
	})
	if r := f.ask("POST /v1/messages", least); r.code != 502 || strings.Contains(r.body, "opaque") {
		t.Errorf("%+v", r)
	}
}

// TestBrokerDown: while the broker boots or restarts, clients are told to wait in the words that they know.
func TestBrokerDown(t *testing.T) {
	for protocol, word := range map[string]string{protocolAnthropic: "overloaded_error", protocolOpenAI: "server_error"} {
		f := startFront(t, protocol, nil)
		f.broker.Close()
		r := f.ask("POST "+map[string]string{protocolAnthropic: "/v1/messages", protocolOpenAI: "/v1/chat/completions"}[protocol], least)
		f.refusedAs("down", r, 503, frontBrokerStarting)
		if r.header.Get("Retry-After") != "1" || !strings.Contains(r.body, `"type":"`+word+`"`) {
			t.Errorf("%+v", r)
		}
		if got := f.last(1); got.Decision != "allow" || got.Reason != frontBrokerStarting {
			t.Errorf("%+v", got)
		}
		if r := f.ask("GET /asf/control", ""); r.code != 204 {
			t.Errorf("the front's control needs no broker: %+v", r)
		}
		_ = caddy.Stop()
	}
}

// TestNoProxy is case P14 for the front: with a proxy in the environment the broker's key would be sent there. The
// upstream is no loopback address, as net/http asks no proxy for those.
func TestNoProxy(t *testing.T) {
	f := startFront(t, protocolAnthropic, m{"upstream": "192.0.2.1:4000"})
	if r := f.ask("POST /v1/messages", least); r.code != 503 {
		t.Errorf("%+v", r)
	}
	if proxyCanary.conns.Load() != 0 || proxyCanary.bytes() != "" {
		t.Errorf("P14: the environment's proxy got %q", proxyCanary.bytes())
	}
}

// TestBrokerDies: an answer that breaks off is not taken for a whole one; one that never began may be tried again.
func TestBrokerDies(t *testing.T) {
	f := startFront(t, protocolAnthropic, nil)
	kind := "text/event-stream"
	f.answer(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		_, _ = io.WriteString(w, "data: {}\n\n")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	})
	c := f.dial()
	_, _ = io.WriteString(c, "POST /v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+testToken+
		"\r\nContent-Type: application/json\r\nContent-Length: 27\r\n\r\n"+least)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := io.ReadAll(resp.Body); err == nil || string(b) != "data: {}\n\n" {
		t.Errorf("%q %v", b, err)
	}
	if got := f.last(1); got.Reason != frontBrokerError {
		t.Errorf("%+v", got)
	}
	kind = "application/json"
	if r := f.ask("POST /v1/messages", least); r.code != 502 || r.header.Get("X-Asf-Inference") != frontBrokerError || strings.Contains(r.body, "data:") {
		t.Errorf("%+v", r)
	}
	f.answer(func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) })
	if r := f.ask("POST /v1/messages", least); r.code != 503 || r.header.Get("Retry-After") != "1" {
		t.Errorf("%+v", r)
	}
}

// events sends headers, three events on demand, and then nothing more.
func events(step <-chan struct{}) http.HandlerFunc {
	return func(w http.ResponseWriter, q *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		rc := http.NewResponseController(w)
		_ = rc.Flush()
		for i := range 3 {
			select {
			case <-step:
			case <-q.Context().Done():
				return
			}
			_, _ = fmt.Fprintf(w, "event: e\ndata: {\"n\":%d}\n\n", i)
			_ = rc.Flush()
		}
		<-q.Context().Done()
	}
}

// TestStreaming: headers and events arrive as they are made, and Shutdown cuts a stream and says so.
func TestStreaming(t *testing.T) {
	f := startFront(t, protocolAnthropic, nil)
	step := make(chan struct{})
	f.answer(events(step))
	c := f.dial()
	_, _ = io.WriteString(c, "POST /v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+testToken+
		"\r\nContent-Type: application/json\r\nContent-Length: 27\r\n\r\n"+least)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil || resp.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("headers do not come before the first event: %v %+v", err, resp)
	}
	stream := bufio.NewReader(resp.Body)
	for i := range 3 {
		step <- struct{}{}
		for _, want := range []string{"event: e\n", fmt.Sprintf("data: {\"n\":%d}\n", i), "\n"} {
			if got, err := stream.ReadString('\n'); got != want || err != nil {
				t.Fatalf("event %d: %q %v", i, got, err)
			}
		}
	}
	Shutdown()
	_ = c.SetReadDeadline(time.Now().Add(2 * time.Second))
	if _, err := io.ReadAll(stream); err == nil || timedOut(err) {
		t.Errorf("the stream was not cut: %v", err)
	}
	if got := f.last(1); got.Reason != reasonClosed || got.Decision != "allow" {
		t.Errorf("%+v", got)
	}
}

// TestControlPath: the probes' positive control needs the token and is never forwarded.
func TestControlPath(t *testing.T) {
	f := startFront(t, protocolOpenAI, nil)
	if r := f.ask("GET /asf/control", ""); r.code != 204 || r.header.Get("X-Asf-Front") != "ok" || r.header.Get("Server") != "" {
		t.Errorf("%+v", r)
	}
	f.refusedAs("no token", f.raw("GET /asf/control HTTP/1.1\r\nHost: x\r\n\r\n"), 401, frontDeniedToken)
	f.refusedAs("wrong token", f.raw("GET /asf/control HTTP/1.1\r\nHost: x\r\nx-api-key: "+testMaster+"\r\n\r\n"), 401, frontDeniedToken)
	for _, line := range append(prefixed("GET ", spellingsOf("/asf/control")), "POST /asf/control", "HEAD /asf/control") {
		f.refusedFrom(line)
	}
	if got := f.lines()[0]; got.Reason != "ok" || got.Detail != "control" || got.Status != 204 {
		t.Errorf("%+v", got)
	}
}

// TestFrontFailsClosed: without two good, different secrets and a literal upstream there is no front.
func TestFrontFailsClosed(t *testing.T) {
	good, other := secretFile(t, testToken), secretFile(t, testMaster)
	base := m{"handler": "asf_inference", "protocol": "openai", "upstream": "127.0.0.1:1", "token_file": good, "key_file": other}
	for name, change := range map[string]m{
		"no token":    {"token_file": ""},
		"missing":     {"token_file": "/nonexistent/token"},
		"empty":       {"token_file": secretFile(t, "")},
		"line break":  {"token_file": secretFile(t, "\n")},
		"star":        {"token_file": secretFile(t, "*")},
		"short":       {"token_file": secretFile(t, "fifteen-bytes-x")},
		"blank":       {"token_file": secretFile(t, testToken+" ")},
		"two breaks":  {"token_file": secretFile(t, testToken+"\n\n")},
		"NUL":         {"token_file": secretFile(t, testToken+"\x00")},
		"huge":        {"token_file": secretFile(t, strings.Repeat("x", 5000))},
		"folder":      {"token_file": t.TempDir()},
		"no key":      {"key_file": ""},
		"empty key":   {"key_file": secretFile(t, "\r\n")},
		"same secret": {"key_file": good},
		"protocol":    {"protocol": "gemini"},
		"no protocol": {"protocol": ""},
		"named":       {"upstream": "broker:4000"},
		"no upstream": {"upstream": ""},
		"unknown key": {"tokenfile": good},
	} {
		h := m{}
		for _, part := range []m{base, change} {
			for k, v := range part {
				h[k] = v
			}
		}
		err := loadConfig(caddyConfig(t.TempDir()+"/log", serverConfig("127.0.0.1:0", "L2", h, nil)))
		if err == nil {
			t.Errorf("%s: loaded", name)
			_ = caddy.Stop()
		} else if strings.Contains(err.Error(), testToken) || strings.Contains(err.Error(), testMaster) {
			t.Errorf("%s: the error holds a secret: %v", name, err)
		}
	}
}

// TestSecretFile is case S2: one final line break is the file's and not the secret's.
func TestSecretFile(t *testing.T) {
	for _, end := range []string{"", "\n", "\r\n"} {
		if got, err := readSecret("k", secretFile(t, testToken+end)); got != testToken || err != nil {
			t.Errorf("%q: %q %v", end, got, err)
		}
	}
}

// TestFrontLimits: connections beyond the front's cap are answered in words that clients wait on.
func TestFrontLimits(t *testing.T) {
	f := &bench{proxy: startCaddy(t, "L2", m{"handler": "asf_inference", "protocol": "anthropic", "upstream": "127.0.0.1:1",
		"token_file": secretFile(t, testToken), "key_file": secretFile(t, testMaster)}, m{"max_conns": 1})}
	_ = f.dial()
	time.Sleep(100 * time.Millisecond)
	r := readReply(t, f.dial())
	if r.code != 503 || r.header.Get("X-Asf-Inference") != reasonLimitConnections || r.header.Get("Retry-After") != "1" || !strings.Contains(r.body, "overloaded_error") {
		t.Errorf("%+v", r)
	}
}

// TestFrontParser: what Caddy or net/http refuses before any route has the front's shape, or at least a line.
func TestFrontParser(t *testing.T) {
	f := startFront(t, protocolAnthropic, nil)
	f.refusedAs("invalid host", f.raw("GET http://d\u00f6cs.test/v1/models HTTP/1.1\r\nHost: x\r\n\r\n"), 400, reasonBadRequest)
	_ = f.raw("GET /v1/\x00 HTTP/1.1\r\nHost: x\r\n\r\n")
	if got := f.last(2); got.Reason != reasonBadRequest || got.Decision != "deny" {
		t.Errorf("%+v", got)
	}
}
