// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"

	"asf.sandbox/caddy/front"
)

const (
	redacted   = "[redacted]"
	maxMessage = 2000 // bytes of an upstream's error text that reach the agent
)

var (
	authPattern = regexp.MustCompile(`(?i)\b(bearer|basic)\s+[^\s"',;]+`)
	// A named secret: api_key=…, "x-api-key": "…", Incorrect API key provided: …
	namedPattern = regexp.MustCompile(`(?i)((?:api|access|secret|private|master|auth)[ _-]?key|authorization|token|secret|password|key provided)` +
		`(["']?\s*[:=]\s*["']?)[^\s"',;{}]+`)
	prefixPattern = regexp.MustCompile(`\b(?:sk|pk|rk|ak|gsk|xai|hf|pplx|nvapi|r8|ghp|glpat|AKIA|AIza|ya29|eyJ)[-_.A-Za-z0-9*]*[-_0-9*][-_.A-Za-z0-9*]{3,}`)
	// What a program in Python prints about itself: LiteLLM quotes it in its own errors.
	tracePattern = regexp.MustCompile(`(?s)\s*Traceback \(most recent call last\):.*`)
	// What LiteLLM puts before and behind a provider's message: its classes, its routes, its retries.
	classPattern = regexp.MustCompile(`^(?:(?:litellm\.)?(?:\w+\.)*[A-Z]\w*(?:Error|Exception)\b\s*(?:-|:)\s*)+`)
	routePattern = regexp.MustCompile(`(?s)[.\s]*(?:Received Model Group=|Available Model Group Fallbacks=|LiteLLM Retried:|LiteLLM Max Retries:|No fallback model group found).*`)
	namePattern  = regexp.MustCompile(`(?i)\blitellm[\w.]*`)
	runPattern   = regexp.MustCompile(`[A-Za-z0-9+/_=*-]{20,}`)
	urlPattern   = regexp.MustCompile(`\b[A-Za-z][A-Za-z0-9+.-]{1,15}://[^\s"'<>]+`)
	addrPattern  = regexp.MustCompile(`\b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?\b`)
	wordPattern  = regexp.MustCompile(`^(?:[A-Za-z]{0,20}|[0-9]{0,8}|[A-Za-z0-9]{1,5})$`)
)

// redactor takes credentials out of an upstream's error text (case B5). It knows the session's own two secrets; the
// provider's key is known to the broker alone, so everything that looks like a key goes, and so do URLs and
// addresses, which would show the sandbox's inside.
type redactor struct {
	secrets []string
}

// text returns s without anything that looks like a credential, bounded.
func (r *redactor) text(s string) string {
	for _, secret := range r.secrets {
		s = strings.ReplaceAll(s, secret, redacted)
	}
	s = tracePattern.ReplaceAllString(s, " [trace]")
	s = routePattern.ReplaceAllString(classPattern.ReplaceAllString(s, ""), "")
	s = urlPattern.ReplaceAllString(s, "[url]")
	s = addrPattern.ReplaceAllString(s, "[address]")
	s = authPattern.ReplaceAllString(s, redacted)
	s = namedPattern.ReplaceAllString(s, "$1$2"+redacted)
	s = prefixPattern.ReplaceAllString(s, redacted)
	s = namePattern.ReplaceAllString(s, "the broker")
	s = runPattern.ReplaceAllStringFunc(s, redactRun)
	if len(s) > maxMessage {
		s = strings.ToValidUTF8(s[:maxMessage], "") + " [cut]"
	}
	return s
}

// redactRun keeps a long run that is made of words and short numbers, as model names are
// (claude-sonnet-4-5-20250929), and drops any other: base64, hexadecimal, random identifiers.
func redactRun(run string) string {
	for _, part := range strings.FieldsFunc(run, func(c rune) bool { return strings.ContainsRune("-_/=+", c) }) {
		if !wordPattern.MatchString(part) {
			return redacted
		}
	}
	return run
}

// tree redacts every string of a decoded JSON value.
func (r *redactor) tree(v any) any {
	switch x := v.(type) {
	case string:
		return r.text(x)
	case []any:
		for i := range x {
			x[i] = r.tree(x[i])
		}
	case map[string]any:
		for k := range x {
			x[k] = r.tree(x[k])
		}
	}
	return v
}

var errorKey = front.NewSearcher(`"error"`)

// event redacts one JSON document of a stream when it reports an error: a top-level "error", or one inside
// "response" (OpenAI Responses). Other documents are the model's words and pass untouched.
func (r *redactor) event(doc []byte) []byte {
	if errorKey.Index(doc) < 0 {
		return doc
	}
	var v map[string]any
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	if d.Decode(&v) != nil {
		return doc
	}
	changed := r.redactError(v)
	if inner, ok := v["response"].(map[string]any); ok {
		changed = r.redactError(inner) || changed
	}
	if !changed {
		return doc
	}
	out, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return out
}

func (r *redactor) redactError(v map[string]any) bool {
	e, ok := v["error"]
	if v["type"] == "error" { // OpenAI Responses: message and code stand beside the type
		r.tree(v)
		return true
	}
	if !ok || e == nil {
		return false
	}
	v["error"] = r.tree(e)
	return true
}
