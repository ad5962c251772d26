// SPDX-License-Identifier: BSD-4-Clause

package front

import "testing"

// TestFormsOfAnswers: LiteLLM itself validates an answer against `response_schema`, and then raises with the answer in
// the error's text: what the provider is paid for would be counted as none.
func TestFormsOfAnswers(t *testing.T) {
	schema := `{"type":"object","properties":{"enforce_validation":{"type":"boolean"}}}`
	for _, c := range []struct {
		path, field, value string
		ok                 bool
	}{
		{"/v1/chat/completions", "response_format", `{"type":"text"}`, true},
		{"/v1/chat/completions", "response_format", `null`, true},
		{"/v1/chat/completions", "response_format", `{"type":"json_object"}`, true},
		{"/v1/chat/completions", "response_format", `{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":` + schema + `}}`, true},
		{"/v1/chat/completions", "response_format", `{"type":"json_object","response_schema":{},"enforce_validation":true}`, false},
		{"/v1/chat/completions", "response_format", `{"type":"json_object","enforce_validat\u0069on":true}`, false},
		{"/v1/chat/completions", "response_format", `{"type":"json_schema","json_schema":{"name":"n","schema":{}},"enforce_validation":true}`, false},
		{"/v1/chat/completions", "response_format", `{"type":"json_schema","json_schema":{"name":"n","enforce_validation":true}}`, false},
		{"/v1/chat/completions", "response_format", `{"response_schema":{},"enforce_validation":true}`, false},
		{"/v1/chat/completions", "response_format", `{"type":"another"}`, false},
		{"/v1/responses", "text", `{"format":{"type":"text"},"verbosity":"low"}`, true},
		{"/v1/responses", "text", `null`, true},
		{"/v1/responses", "text", `{"format":{"type":"json_schema","name":"n","strict":true,"schema":` + schema + `}}`, true},
		{"/v1/responses", "text", `{"format":{"type":"json_object","response_schema":{},"enforce_validation":true}}`, false},
		{"/v1/responses", "text", `{"enforce_validation":true}`, false},
	} {
		e := endpoint(t, "POST "+c.path)
		body := `{"model":"m","messages":[],"` + c.field + `":` + c.value + `}`
		if c.path == "/v1/responses" {
			body = `{"model":"m","` + c.field + `":` + c.value + `}`
		}
		if _, no := e.Check([]byte(body), &Grants{}); (no == nil) != c.ok {
			t.Errorf("%s: %v", body, no)
		}
	}
}
