// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// isFront tells by a listener's label whether it speaks the front's language or the proxy's.
func isFront(listener string) bool { return strings.HasPrefix(listener, "L2") }

// anthropicTypes are the error types that Anthropic documents for its API, by status.
var anthropicTypes = map[int]string{
	http.StatusUnauthorized:          "authentication_error",
	http.StatusForbidden:             "permission_error",
	http.StatusNotFound:              "not_found_error",
	http.StatusRequestEntityTooLarge: "request_too_large",
	http.StatusTooManyRequests:       "rate_limit_error",
	http.StatusServiceUnavailable:    "overloaded_error",
	http.StatusGatewayTimeout:        "timeout_error",
	529:                              "overloaded_error",
}

// openaiTypes are the types that OpenAI's API uses, by status.
var openaiTypes = map[int]string{
	http.StatusUnauthorized:    "authentication_error",
	http.StatusForbidden:       "permission_error",
	http.StatusTooManyRequests: "rate_limit_error",
}

func errorType(protocol string, status int) string {
	types := anthropicTypes
	if protocol == protocolOpenAI {
		types = openaiTypes
	}
	if t, ok := types[status]; ok {
		return t
	}
	switch {
	case status < 500:
		return "invalid_request_error"
	case protocol == protocolOpenAI:
		return "server_error"
	}
	return "api_error"
}

type anthropicError struct {
	Type  string             `json:"type"`
	Error anthropicErrorBody `json:"error"`
}

type anthropicErrorBody struct {
	Type    string `json:"type"`
	Message string `json:"message"`
}

type openaiError struct {
	Error openaiErrorBody `json:"error"`
}

type openaiErrorBody struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

// errorBody renders an error as the protocol's clients expect it.
func errorBody(protocol string, kind, code, message string) []byte {
	var v any = anthropicError{"error", anthropicErrorBody{kind, message}}
	if protocol == protocolOpenAI {
		v = openaiError{openaiErrorBody{message, kind, nil, code}}
	}
	b, err := json.Marshal(v)
	if err != nil { // strings always marshal; kept so that no error is dropped
		return []byte(`{"error":{}}`)
	}
	return append(b, '\n')
}

// answerFront writes an answer of the front's own and notes it for the log.
func answerFront(w http.ResponseWriter, protocol string, e *exchange, no frontRefusal) {
	e.status, e.reason, e.detail, e.key = no.status, no.reason, no.message, no.key
	h := w.Header()
	h.Del("Server")
	h.Set("X-Asf-Inference", no.reason)
	if no.key != "" {
		h.Set("X-Asf-Key", no.key)
	}
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	switch {
	case no.status == http.StatusUnauthorized: // RFC 9110 section 15.5.2
		h.Set("WWW-Authenticate", `Bearer realm="asf"`)
	case no.retry > 0:
		h.Set("Retry-After", strconv.Itoa(no.retry))
	case no.retry < 0:
		h.Set("X-Should-Retry", "false")
	case no.status == http.StatusServiceUnavailable:
		h.Set("Retry-After", "1")
	}
	if no.reason != frontBrokerStarting { // waiting clients keep their connection; before others unread bodies lie
		h.Set("Connection", "close")
	}
	body := errorBody(protocol, errorType(protocol, no.status), no.reason, "ASF: "+no.message)
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(no.status)
	n, _ := w.Write(body)
	e.down = int64(n)
}

// frontOverflow is the whole response to a connection beyond the front's cap. Both protocols' clients retry on it.
func frontOverflow() []byte {
	body := errorBody(protocolAnthropic, "overloaded_error", "", "ASF: too many open connections")
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 503 %[1]s\r\nX-Asf-Inference: %[1]s\r\nRetry-After: 1\r\nContent-Type: application/json\r\n"+
		"Content-Length: %[2]d\r\nConnection: close\r\n\r\n%[3]s", reasonLimitConnections, len(body), body)
	return b.Bytes()
}
