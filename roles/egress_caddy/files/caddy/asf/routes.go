// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"fmt"
	"mime"
	"net/http"
	"slices"
	"strings"

	"asf.sandbox/caddy/front"
)

const (
	protocolAnthropic = "anthropic"
	protocolOpenAI    = "openai"
)

// routesOf are the table's routes of one protocol. They are matched on the raw bytes of method and target: no decoding,
// no cleaning, no case folding, so a path has one spelling here and at the broker. (Caddy's own path matcher lets
// /key/generate/../../v1/messages through.)
func routesOf(protocol string) (map[string]*front.Endpoint, error) {
	all, err := front.Endpoints()
	if err != nil {
		return nil, err
	}
	out := map[string]*front.Endpoint{}
	for line, e := range all {
		if e.Protocol == protocol || e.Protocol == "both" {
			out[line] = e
		}
	}
	return out, nil
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
	key     string // the manifest's key that would change it, "" when none would
	retry   int    // seconds after which it is worth a try, 0: not said, -1: never
}

func refuseFront(reason string, status int, message string) *frontRefusal {
	return &frontRefusal{reason: reason, status: status, message: message}
}

// admit judges everything but the body's bytes, and finds the route. Order: token, route, query, framing; so nobody
// without the token learns what is served.
func (i *Inference) admit(q *http.Request) (*front.Endpoint, *frontRefusal) {
	if !i.token.authorized(q.Header) {
		return nil, refuseFront(frontDeniedToken, http.StatusUnauthorized,
			"the session token is missing, wrong, or given in two ways that differ")
	}
	path, query, queried := strings.Cut(q.RequestURI, "?")
	r, ok := i.routes[q.Method+" "+path]
	if !ok {
		return nil, refuseFront(frontDeniedPath, http.StatusForbidden, "this method and path are not on the list")
	}
	if queried && !slices.Contains(r.Queries, query) {
		return nil, refuseFront(frontDeniedQuery, http.StatusForbidden, "this query is not on the list")
	}
	if r.Body == "" {
		if q.ContentLength != 0 {
			return nil, refuseFront(frontDeniedBody, http.StatusBadRequest, "no body belongs here")
		}
		return r, nil
	}
	return r, i.admitBody(q)
}

func (i *Inference) admitBody(q *http.Request) *frontRefusal {
	if !isJSON(q.Header.Values("Content-Type")) {
		return refuseFront(frontDeniedType, http.StatusUnsupportedMediaType, "the body must be application/json in UTF-8")
	}
	for _, e := range q.Header.Values("Content-Encoding") {
		if !strings.EqualFold(e, "identity") {
			return refuseFront(frontDeniedEncoding, http.StatusUnsupportedMediaType, "the body must not be compressed")
		}
	}
	if q.ContentLength == 0 {
		return refuseFront(frontDeniedBody, http.StatusBadRequest, "a body is missing")
	}
	if q.ContentLength > i.MaxBody {
		return i.tooLarge()
	}
	return nil
}

func (i *Inference) tooLarge() *frontRefusal {
	no := refuseFront(frontDeniedSize, http.StatusRequestEntityTooLarge,
		fmt.Sprintf("the body is larger than the session's limit of %d bytes", i.MaxBody))
	no.key = i.sizeKey
	return no
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
