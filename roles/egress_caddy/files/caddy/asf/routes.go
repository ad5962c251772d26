// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"mime"
	"net/http"
	"strings"
)

const (
	protocolAnthropic = "anthropic"
	protocolOpenAI    = "openai"
)

// route is one thing that a session token opens.
type route struct {
	body    bool     // a JSON body is expected; otherwise none may come
	queries []string // exact query strings that may follow the path
}

// routes are matched on the raw bytes of method and target: no decoding, no cleaning, no case folding, so a path has
// one spelling here and at the broker. (Caddy's own path matcher lets /key/generate/../../v1/messages through.)
var routes = map[string]map[string]route{
	protocolAnthropic: {
		"POST /v1/messages":              {body: true, queries: []string{"beta=true"}},
		"POST /v1/messages/count_tokens": {body: true, queries: []string{"beta=true"}},
		"GET /v1/models":                 {},
	},
	protocolOpenAI: {
		"POST /v1/chat/completions": {body: true},
		"POST /v1/responses":        {body: true},
		"GET /v1/models":            {},
	},
}

const (
	frontDeniedToken    = "denied-token"
	frontDeniedPath     = "denied-path"
	frontDeniedQuery    = "denied-query"
	frontDeniedType     = "denied-content-type"
	frontDeniedEncoding = "denied-encoding"
	frontDeniedSize     = "denied-size"
	frontDeniedBody     = "denied-body"
	frontBrokerStarting = "broker-starting"
	frontBrokerTimeout  = "broker-timeout"
	frontBrokerError    = "broker-error"
)

// frontRefusal is an answer of the front's own.
type frontRefusal struct {
	reason  string
	status  int
	message string
}

// admit judges everything but the body's bytes. Order: token, route, query, framing; so nobody without the token
// learns what is served.
func (i *Inference) admit(q *http.Request) *frontRefusal {
	if !i.token.authorized(q.Header) {
		return &frontRefusal{frontDeniedToken, http.StatusUnauthorized,
			"the session token is missing, wrong, or given in two ways that differ"}
	}
	path, query, queried := strings.Cut(q.RequestURI, "?")
	r, ok := i.routes[q.Method+" "+path]
	if !ok {
		return &frontRefusal{frontDeniedPath, http.StatusForbidden, "this method and path are not on the list"}
	}
	if queried && !contains(r.queries, query) {
		return &frontRefusal{frontDeniedQuery, http.StatusForbidden, "this query is not on the list"}
	}
	if !r.body {
		if q.ContentLength != 0 {
			return &frontRefusal{frontDeniedBody, http.StatusBadRequest, "no body belongs here"}
		}
		return nil
	}
	return i.admitBody(q)
}

func (i *Inference) admitBody(q *http.Request) *frontRefusal {
	if !isJSON(q.Header.Values("Content-Type")) {
		return &frontRefusal{frontDeniedType, http.StatusUnsupportedMediaType, "the body must be application/json in UTF-8"}
	}
	for _, e := range q.Header.Values("Content-Encoding") {
		if !strings.EqualFold(e, "identity") {
			return &frontRefusal{frontDeniedEncoding, http.StatusUnsupportedMediaType, "the body must not be compressed"}
		}
	}
	if q.ContentLength == 0 {
		return &frontRefusal{frontDeniedBody, http.StatusBadRequest, "a body is missing"}
	}
	if q.ContentLength > i.MaxBody {
		return i.tooLarge()
	}
	return nil
}

func (i *Inference) tooLarge() *frontRefusal {
	return &frontRefusal{frontDeniedSize, http.StatusRequestEntityTooLarge, "the body is larger than the session's limit"}
}

// isJSON demands one Content-Type, application/json: the broker reads any other type as a form.
func isJSON(types []string) bool {
	if len(types) != 1 {
		return false
	}
	kind, params, err := mime.ParseMediaType(types[0])
	if err != nil || kind != "application/json" {
		return false
	}
	for k, v := range params {
		if k != "charset" || !strings.EqualFold(v, "utf-8") {
			return false
		}
	}
	return true
}

func contains(list []string, s string) bool {
	for _, x := range list {
		if x == s {
			return true
		}
	}
	return false
}
