// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"asf.sandbox/caddy/front"
)

// TestPrintable: what a client sent can neither break a log line nor steer a terminal.
func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"docs.example.com":              "docs.example.com",
		"a\x1b[31mb":                    `a\x1b[31mb`,
		"a\r\nb":                        `a\r\nb`,
		"a\u202eb":                      `a\u202eb`,
		"\xff\xfe":                      `\xff\xfe`,
		"a\"b":                          `a"b`,
		strings.Repeat("x", 400):        strings.Repeat("x", maxLogged) + "[cut]",
		strings.Repeat("x", 299) + "\n": strings.Repeat("x", 299) + `\n`,
	} {
		if got := printable(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

// TestDescribeTarget: a log holds no userinfo, query or fragment.
func TestDescribeTarget(t *testing.T) {
	for in, want := range map[string]string{
		"docs.example.com:443":       "docs.example.com:443",
		"user:secret@a.test:443":     "[cut]@a.test:443",
		"http://user:secret@a.test/": "http://[cut]@a.test/",
		"/v1/x?api_key=secret":       "/v1/x?[cut]",
		"/v1/x#secret":               "/v1/x?[cut]",
		"secret@secret@a.test":       "[cut]@a.test",
		"http://a.test/p@secret":     "http://[cut]@secret",
		"":                           "",
	} {
		if got := describeTarget(in); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

// TestRefusalShape: every reason that refuses has a status, a remedy and one line of head per fact.
func TestRefusalShape(t *testing.T) {
	for reason, status := range proxyStatus {
		no := refuse(reason, "what\r\nX-Evil: 1").at("network.allow_domains[0]\r\nX-Evil: 1", "do this")
		head, body, ok := strings.Cut(string(no.bytes("h\r\n\x1b", "443", "")), "\r\n\r\n")
		if !ok || strings.Contains(head, "\nX-Evil") || !strings.HasPrefix(head, "HTTP/1.1 ") {
			t.Errorf("%s: %q", reason, head)
		}
		if no.status() != status || !strings.Contains(head, "\r\nX-Asf-Proxy: "+reason+"\r\n") || !strings.Contains(head, " "+reason+"\r\n") {
			t.Errorf("%s: %q", reason, head)
		}
		var b refusalBody
		if err := json.Unmarshal([]byte(body), &b); err != nil || b.Error != reason || b.Remedy != "do this" || strings.ContainsAny(b.Host, "\r\n\x1b") {
			t.Errorf("%s: %q", reason, body)
		}
		if d := (&decision{reason: reason}); (d.verdict() == decisionAllow) != (no.upstream() || reason == reasonClosed) {
			t.Errorf("%s: verdict %s", reason, d.verdict())
		}
		if reason != reasonDeniedAddress && refuse(reason, "").remedy == "" { // denied-address always says its own
			t.Errorf("%s has no remedy", reason)
		}
	}
	if (&refusal{reason: "unknown"}).status() != http.StatusForbidden {
		t.Error("an unknown reason must not look like success")
	}
}

// TestRedact is case B5: what looks like a credential, a URL or an address does not pass; words do.
func TestRedact(t *testing.T) {
	r := &redactor{secrets: []string{"master-secret-of-the-broker"}}
	for _, s := range []string{
		"master-secret-of-the-broker", "sk-ant-api03-AbCdEf0123456789", "sk-proj-x1y2z3", "AKIAIOSFODNN7EXAMPLE", "ghp_0123456789abcdef",
		"Bearer abcdef", "bearer x", "Basic dTpw", "api_key=hunter2", `"x-api-key": "hunter2"`, "Incorrect API key provided: hunter2.",
		"authorization: hunter2", "token=hunter2", "0123456789abcdef0123456789abcdef", "dGhpcyBpcyBhIHNlY3JldCBrZXk0Mg==",
		"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2ln", "https://user:pw@api.test/v1?key=x", "198.18.0.6:4000", "10.0.0.1",
		"canary-anthropic_api_key-0123456789abcdef01234567",
	} {
		for _, around := range []string{"%", "before % after", `{"a":"%"}`, "(%)", "%\n"} {
			if got := r.text(strings.Replace(around, "%", s, 1)); strings.Contains(got, s) {
				t.Errorf("%q came through: %q", s, got)
			}
		}
	}
	for _, s := range []string{
		"prompt is too long: 210000 tokens > 200000 maximum", "model claude-sonnet-4-5-20250929 not found", "Overloaded",
		"messages.0.content: field required", "max_tokens: 1 is less than the minimum",
	} {
		if got := r.text(s); got != s {
			t.Errorf("%q became %q", s, got)
		}
	}
	for s, want := range map[string]string{
		`litellm.BadRequestError: AnthropicException - {"type":"error","error":{"message":"too long"}}. Received Model Group=claude-test` + "\nAvailable Model Group Fallbacks=None": `{"type":"error","error":{"message":"too long"}}`,
		"litellm.RateLimitError: RateLimitError: OpenAIException - no LiteLLM Retried: 2 times":                                                                                      "no",
		"litellm.proxy.ProxyException: no such model, see LiteLLM's pages":                                                                                                           "no such model, see the broker's pages",
		"An error was raised: TypeError: x": "An error was raised: TypeError: x",
	} {
		if got := r.text(s); got != want {
			t.Errorf("%q became %q, want %q", s, got, want)
		}
	}
	if got := r.text(strings.Repeat("word ", 1000)); len(got) > maxMessage+10 {
		t.Errorf("%d bytes", len(got))
	}
}

// TestExactFilter: a secret is found however the stream is cut, and everything else comes through unchanged.
func TestExactFilter(t *testing.T) {
	const secret = "abcabcabd-secret"
	text := "xx" + secret + "abcabcab" + secret + secret + "abcabcabc end abcabc"
	want := strings.ReplaceAll(text, secret, redacted)
	for size := 1; size <= len(text); size++ {
		f, got := &exactFilter{secrets: []*front.Searcher{front.NewSearcher(secret)}}, ""
		for rest := text; rest != ""; {
			n := min(size, len(rest))
			got += string(f.push([]byte(rest[:n])))
			rest = rest[n:]
		}
		if got += string(f.finish()); got != want {
			t.Fatalf("pieces of %d: %q", size, got)
		}
	}
	f := &exactFilter{secrets: []*front.Searcher{front.NewSearcher(secret)}}
	if got := string(f.push([]byte("data: hi\n"))); got != "data: hi\n" {
		t.Errorf("an ordinary piece is delayed: %q", got)
	}
}

// TestEventFilter: an error event is redacted, other events are the model's words and stay as they are.
func TestEventFilter(t *testing.T) {
	const key = "key-of-the-broker-0123"
	const leak = "sk-ant-api03-AbCdEf0123456789"
	words := `data: {"type":"content_block_delta","delta":{"text":"export KEY=` + leak + `"}}` + "\n\n"
	in := "event: x\n" + words +
		`data: {"type":"error","error":{"type":"api_error","message":"bad ` + leak + `"}}` + "\r\n\n" +
		`data: {"type":"response.failed","response":{"error":{"code":"x","message":"bad ` + leak + `"}}}` + "\n\n" +
		`data: {"type":"error","code":null,"message":"bad ` + leak + `"}` + "\n" +
		"data: plain " + key + "\ndata: [DONE]\n" + `data: {"error":{"message":"` + leak + `"}}`
	for _, size := range []int{1, 7, 64, len(in)} {
		f, got := &eventFilter{exact: &exactFilter{secrets: []*front.Searcher{front.NewSearcher(key)}}, redact: &redactor{secrets: []string{key}}}, ""
		for rest := in; rest != ""; {
			n := min(size, len(rest))
			got += string(f.push([]byte(rest[:n])))
			rest = rest[n:]
		}
		got += string(f.finish())
		if strings.Count(got, leak) != 1 || !strings.Contains(got, words) || strings.Contains(got, key) || !strings.Contains(got, "data: [DONE]\n") {
			t.Errorf("pieces of %d: %s", size, got)
		}
	}
	f := &eventFilter{exact: &exactFilter{secrets: []*front.Searcher{front.NewSearcher(key)}}, redact: &redactor{}}
	long := string(f.push([]byte("data: "+strings.Repeat("x", maxLine)+key[:9]))) + string(f.push([]byte(key[9:]+"\nnext\n"))) + string(f.finish())
	if strings.Contains(long, key) || !strings.HasSuffix(long, "\nnext\n") || len(long) < maxLine {
		t.Errorf("a line over the limit: %d bytes, end %q", len(long), long[len(long)-20:])
	}
}

// TestLongLines: a line beyond what each stream may hold takes room from what bodies share, and gives it back; without
// room it passes without a look inside.
func TestLongLines(t *testing.T) {
	const leak = "sk-ant-api03-AbCdEf0123456789"
	line := `data: {"error":{"message":"` + strings.Repeat("word ", 50000) + leak + `"}}` + "\n"
	for limit, leaks := range map[int64]int{1 << 20: 0, 100 << 10: 1} {
		shared := &memory{limit: limit}
		f := &eventFilter{exact: &exactFilter{}, redact: &redactor{}, from: shared}
		got, most := "", int64(0)
		for rest := line + line; rest != ""; {
			n := min(len(rest), 32<<10)
			got += string(f.push([]byte(rest[:n])))
			rest, most = rest[n:], max(most, shared.used.Load())
		}
		got += string(f.finish())
		f.free()
		if strings.Count(got, leak) != 2*leaks || shared.used.Load() != 0 || most == 0 && leaks == 0 {
			t.Errorf("limit %d: %d leaks, most %d, left %d", limit, strings.Count(got, leak), most, shared.used.Load())
		}
	}
}
