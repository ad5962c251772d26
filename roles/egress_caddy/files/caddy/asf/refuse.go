// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"errors"
	"net/http"
	"time"

	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() { caddy.RegisterModule(&Refuse{}) }

// Refuse belongs in a server's error routes. Caddy refuses some requests by itself (an invalid Host, a method of more
// than 32 bytes) before any route runs; here such a refusal gets the shape and the log line of all others.
type Refuse struct {
	// Session and Listener are for the log; a Listener that begins with "L2" answers in the front's form.
	Session  string `json:"session,omitempty"`
	Listener string `json:"listener,omitempty"`
	// Protocol is the front's, see Inference.
	Protocol string `json:"protocol,omitempty"`
}

// CaddyModule implements caddy.Module.
func (*Refuse) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.asf_refuse", New: func() caddy.Module { return new(Refuse) }}
}

// ServeHTTP answers; it never calls the next handler.
func (f *Refuse) ServeHTTP(w http.ResponseWriter, q *http.Request, _ caddyhttp.Handler) error {
	raw := guarded(q)
	raw.enter()
	defer raw.leave()
	no := refuse(f.reason(q), "refused by the HTTP server before any route")
	if isFront(f.Listener) {
		e := &exchange{session: f.Session, listener: f.Listener, method: q.Method, target: q.RequestURI, start: time.Now()}
		answerFront(w, f.Protocol, e, *refuseFront(no.reason, no.status(), no.detail))
		e.emit()
		return nil
	}
	d := &decision{session: f.Session, listener: f.Listener, method: q.Method, host: describeTarget(q.RequestURI), start: time.Now()}
	d.refuse(no)
	d.emit()
	return answerRefusal(w, raw, no.bytes(d.host, "", ""))
}

func (f *Refuse) reason(q *http.Request) string {
	err, _ := q.Context().Value(caddyhttp.ErrorCtxKey).(error)
	var he caddyhttp.HandlerError
	switch {
	case !errors.As(err, &he):
		return reasonInternal
	case he.StatusCode == http.StatusMethodNotAllowed:
		return reasonDeniedMethod
	case he.StatusCode >= 400 && he.StatusCode < 500:
		return reasonBadRequest
	}
	return reasonInternal
}

var _ caddyhttp.MiddlewareHandler = (*Refuse)(nil)
