// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
)

// Reasons are stable words: they stand in the status line, in X-Asf-Proxy, in the body and in the log, and other
// programs match on them.
const (
	reasonOK                  = "ok"
	reasonBadRequest          = "bad-request"
	reasonDeniedName          = "denied-name"
	reasonDeniedPort          = "denied-port"
	reasonDeniedMethod        = "denied-method"
	reasonDeniedAbsoluteForm  = "denied-absolute-form"
	reasonDeniedAddress       = "denied-address"
	reasonDeniedSNI           = "denied-sni"
	reasonLimitTunnels        = "limit-tunnels"
	reasonLimitConnections    = "limit-connections"
	reasonUpstreamRefused     = "upstream-refused"
	reasonUpstreamTimeout     = "upstream-timeout"
	reasonUpstreamUnreachable = "upstream-unreachable"
	reasonUpstreamFailure     = "upstream-failure"
	reasonDNSNotFound         = "upstream-dns-notfound"
	reasonDNSTimeout          = "upstream-dns-timeout"
	reasonDNSFailure          = "upstream-dns-failure"
	reasonClientGone          = "client-gone"
	reasonIdleTimeout         = "idle-timeout"
	reasonClosed              = "closed"
	reasonInternal            = "internal"
)

// proxyStatus gives each refusal its own status where HTTP has one, because many clients show nothing else.
var proxyStatus = map[string]int{
	reasonBadRequest:          http.StatusBadRequest,
	reasonDeniedName:          http.StatusForbidden,
	reasonDeniedPort:          http.StatusForbidden,
	reasonDeniedMethod:        http.StatusMethodNotAllowed,
	reasonDeniedAbsoluteForm:  http.StatusForbidden,
	reasonDeniedAddress:       http.StatusForbidden,
	reasonLimitTunnels:        http.StatusServiceUnavailable,
	reasonLimitConnections:    http.StatusServiceUnavailable,
	reasonUpstreamRefused:     http.StatusBadGateway,
	reasonUpstreamTimeout:     http.StatusGatewayTimeout,
	reasonUpstreamUnreachable: http.StatusBadGateway,
	reasonUpstreamFailure:     http.StatusBadGateway,
	reasonDNSNotFound:         http.StatusBadGateway,
	reasonDNSTimeout:          http.StatusGatewayTimeout,
	reasonDNSFailure:          http.StatusBadGateway,
	reasonChainTimeout:        http.StatusGatewayTimeout,
	reasonClosed:              http.StatusServiceUnavailable,
	reasonInternal:            http.StatusInternalServerError,
}

// remedies are the defaults; a refusal that knows more says so itself.
var remedies = map[string]string{
	reasonBadRequest:         "send CONNECT host:port in HTTP/1.1 without a body",
	reasonDeniedName:         "ask for a declared host name, in letters, digits, dots and hyphens",
	reasonDeniedPort:         "ask for host:port with a declared port",
	reasonDeniedMethod:       "use CONNECT: this proxy serves nothing else",
	reasonDeniedAbsoluteForm: "use https, so that the client sends CONNECT: plain http is not proxied",
	reasonLimitTunnels:       "close tunnels that are no longer used, then try again",
	reasonLimitConnections:   "close connections that are no longer used, then try again",
	reasonClosed:             "the session is closing",
	reasonInternal:           "see the proxy's log",
}

const upstreamRemedy = "the policy allows this destination; the trouble is between the proxy and the host"

// refusal is a request that gets no tunnel. It is also used for upstream trouble, which is not a denial.
type refusal struct {
	reason string
	detail string
	key    string // manifest key that would change the decision, "" when none would
	remedy string
}

func refuse(reason, detail string) *refusal {
	r := &refusal{reason: reason, detail: detail, remedy: remedies[reason]}
	if r.upstream() {
		r.remedy = upstreamRemedy
	}
	return r
}

// at names the manifest key and what to do with it.
func (r *refusal) at(key, remedy string) *refusal {
	r.key, r.remedy = key, remedy
	return r
}

// upstream tells trouble of the destination from a denial, which must never be mistaken for each other.
func (r *refusal) upstream() bool {
	return strings.HasPrefix(r.reason, "upstream-")
}

func (r *refusal) status() int {
	if s, ok := proxyStatus[r.reason]; ok {
		return s
	}
	if r.upstream() { // never a proxy's own 407: a client would ask its user for a password
		return http.StatusBadGateway
	}
	return http.StatusForbidden
}

// refusalBody is the documented JSON of a refused request.
type refusalBody struct {
	Error  string `json:"error"`
	Detail string `json:"detail"`
	Host   string `json:"host"`
	Port   string `json:"port"`
	Key    string `json:"key"`
	Remedy string `json:"remedy"`
}

// bytes renders the whole response. The reason is also the reason phrase: many clients show only the status line of
// a refused CONNECT. The framing is written out by hand because a refused connection is never used again.
func (r *refusal) bytes(host, port, policyID string) []byte {
	body, err := json.Marshal(refusalBody{r.reason, printable(r.detail), printable(host), printable(port), r.key, r.remedy})
	if err != nil { // strings always marshal; kept so that no error is dropped
		body = []byte(`{"error":"` + reasonInternal + `"}`)
	}
	status := r.status()
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\nX-Asf-Proxy: %s\r\n", status, r.reason, r.reason)
	if policyID != "" {
		fmt.Fprintf(&b, "X-Asf-Policy: %s\r\n", printable(policyID))
	}
	if r.key != "" {
		fmt.Fprintf(&b, "X-Asf-Key: %s\r\n", printable(r.key))
	}
	switch status {
	case http.StatusMethodNotAllowed: // RFC 9110 section 15.5.6
		b.WriteString("Allow: CONNECT\r\n")
	case http.StatusServiceUnavailable:
		b.WriteString("Retry-After: 1\r\n")
	}
	fmt.Fprintf(&b, "Content-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s\n", len(body)+1, body)
	return b.Bytes()
}
