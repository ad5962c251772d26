// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"asf.sandbox/caddy/front"
	"github.com/caddyserver/caddy/v2"
	"github.com/caddyserver/caddy/v2/modules/caddyhttp"
)

func init() { caddy.RegisterModule(&Inference{}) }

// Inference is the front: it lets a session's token reach the broker's inference routes and nothing else. The request
// that goes on is built anew (method, exact target, listed headers, the broker's key, the body), never forwarded, and
// only listed headers come back. It talks to the broker itself: Caddy's reverse_proxy would add headers, honour proxy
// variables and normalize paths, and could not see an error's body.
type Inference struct {
	// Session and Listener are for the log. Listener defaults to L2.
	Session  string `json:"session,omitempty"`
	Listener string `json:"listener,omitempty"`
	// Protocol is "anthropic" or "openai": the routes, and the shape of errors.
	Protocol string `json:"protocol,omitempty"`
	// TokenFile holds the session's token, KeyFile the broker's key. Both are read at start.
	TokenFile string `json:"token_file,omitempty"`
	KeyFile   string `json:"key_file,omitempty"`
	// Upstream is the broker, IP:port.
	Upstream string `json:"upstream,omitempty"`
	// MaxBody bounds a request's body in bytes. Default 32 MiB.
	MaxBody int64 `json:"max_body,omitempty"`
	// Provider is LiteLLM's word for whose models they are: their prices. None: the embedded model, which costs nothing.
	Provider string `json:"provider,omitempty"`
	// Models are the names that may be asked for, with * for any run of characters; none: every name.
	Models []string `json:"models,omitempty"`
	// Hosted are the provider-side things that are granted, by the words of the front's table or by their types.
	Hosted []string `json:"hosted_tools,omitempty"`
	// RequestBytes is the manifest's own bound of a body, below MaxBody.
	RequestBytes int64 `json:"request_bytes,omitempty"`
	// Limits are the session's, by the manifest's keys; zero is none.
	Limits FrontLimits `json:"limits,omitempty"`
	// StateFile keeps what the session has used, beyond this process. None: it is kept in memory alone.
	StateFile string `json:"state_file,omitempty"`
	// BodyMemory bounds the bodies that are held at once. Default 64 MiB.
	BodyMemory int64 `json:"body_memory,omitempty"`
	// BodyTimeout is how long a client may take to send a body. Default 2m.
	BodyTimeout caddy.Duration `json:"body_timeout,omitempty"`
	// ControlPath answers GET with 204 when the token is right, and is never passed on. Default /asf/control.
	ControlPath string `json:"control_path,omitempty"`
	// PolicyID is told by the control resource, so that it can be seen which policy decides.
	PolicyID string `json:"policy_id,omitempty"`
	// ResponseTimeout is how long the broker may take before it answers. Default 10m.
	ResponseTimeout caddy.Duration `json:"response_timeout,omitempty"`

	token     credential
	key       string
	routes    map[string]*front.Endpoint
	grants    *front.Grants
	memory    *memory
	account   *front.Account
	sizeKey   string // of the manifest, when the bound of a body is its own
	redact    *redactor
	hidden    []*front.Searcher // what no answer may hold
	transport http.RoundTripper
	group     *group
	forget    func()
	replaced  atomic.Bool // by a later configuration
}

// CaddyModule implements caddy.Module.
func (*Inference) CaddyModule() caddy.ModuleInfo {
	return caddy.ModuleInfo{ID: "http.handlers.asf_inference", New: func() caddy.Module { return new(Inference) }}
}

// Provision reads the secrets and fails closed: without both there is no front.
func (i *Inference) Provision(caddy.Context) error {
	if i.Protocol != protocolAnthropic && i.Protocol != protocolOpenAI {
		return fmt.Errorf("protocol %q: use %q or %q", i.Protocol, protocolAnthropic, protocolOpenAI)
	}
	var err error
	if i.routes, err = routesOf(i.Protocol); err != nil {
		return err
	}
	if a, err := netip.ParseAddrPort(i.Upstream); err != nil || a.Port() == 0 {
		return fmt.Errorf("upstream %q is not IP:port", i.Upstream)
	}
	token, err := readSecret("token_file", i.TokenFile)
	if err != nil {
		return err
	}
	if i.key, err = readSecret("key_file", i.KeyFile); err != nil {
		return err
	}
	if token == i.key {
		return errors.New("token_file and key_file hold the same secret")
	}
	i.token, i.redact = newCredential(token), &redactor{secrets: []string{i.key, token}}
	i.hidden = []*front.Searcher{front.NewSearcher(i.key)}
	if i.Listener == "" {
		i.Listener = "L2"
	}
	i.bounds()
	i.grants = &front.Grants{Models: i.Models, Hosted: i.Hosted}
	if i.ControlPath == "" {
		i.ControlPath = "/asf/control"
	}
	fallback(&i.ResponseTimeout, 10*time.Minute)
	if i.account, err = front.Open(i.Session, i.StateFile); err != nil {
		return err
	}
	i.transport = i.newTransport()
	i.group = newGroup()
	i.forget = register(i.group)
	return nil
}

// bounds sets the defaults of what a body may be.
func (i *Inference) bounds() {
	if i.MaxBody <= 0 {
		i.MaxBody = 32 << 20
	}
	if i.RequestBytes > 0 && i.RequestBytes < i.MaxBody {
		i.MaxBody, i.sizeKey = i.RequestBytes, "llm.limits.request_bytes"
	}
	if i.BodyMemory <= 0 {
		i.BodyMemory = 64 << 20
	}
	i.memory = &memory{limit: max(i.BodyMemory, i.MaxBody)}
	fallback(&i.BodyTimeout, 2*time.Minute)
}

// newTransport never reads proxy variables: with them the broker's key would be sent to that proxy (case P14).
// Connections are kept for less time than the broker keeps them (uvicorn closes idle ones after 5 s): a request that met
// such a close would fail.
func (i *Inference) newTransport() *http.Transport {
	return &http.Transport{
		Proxy:                  nil,
		DialContext:            (&net.Dialer{Timeout: 2 * time.Second}).DialContext,
		MaxIdleConnsPerHost:    64,
		IdleConnTimeout:        2 * time.Second,
		DisableCompression:     true,
		ResponseHeaderTimeout:  time.Duration(i.ResponseTimeout),
		MaxResponseHeaderBytes: 64 << 10,
	}
}

// Cleanup lets answers in flight end by themselves after a reload, and then forgets the handler; Shutdown cuts them. A
// request whose body is still coming was not judged yet, and is not judged by what is no policy any more.
func (i *Inference) Cleanup() error {
	i.replaced.Store(true)
	if i.group != nil {
		i.group.whenIdle(i.forget)
	}
	return nil
}

// exchange is one request to the front, for its one log line.
type exchange struct {
	session, listener string
	method, target    string
	reason, detail    string
	key               string
	status            int
	up, down          int64
	start             time.Time

	facts front.Facts
	price front.Price
	known bool // the price is
	meter front.Meter
	first time.Time // when the first piece of the answer went to the client
	whole bool      // the answer came to its end
	free  bool      // no tokens are used
}

func (e *exchange) emit() {
	verdict := decisionDeny
	switch e.reason {
	case reasonOK, reasonClientGone, reasonClosed, frontBrokerStarting, frontBrokerTimeout, frontBrokerError:
		verdict = decisionAllow
	}
	k := kind{session: e.session, listener: e.listener, method: printable(e.method),
		target: printable(describeTarget(e.target)), decision: verdict, reason: e.reason, key: e.key, status: e.status}
	decided.note(k, printable(e.detail), "", e.up, e.down, e.start)
}

// ServeHTTP answers one request; it leaves exactly one decision line.
func (i *Inference) ServeHTTP(w http.ResponseWriter, q *http.Request, _ caddyhttp.Handler) error {
	raw := guarded(q)
	raw.enter()
	defer raw.leave()
	e := &exchange{session: i.Session, listener: i.Listener, method: q.Method, target: q.RequestURI, start: time.Now()}
	if !i.group.enter() {
		answerFront(w, i.Protocol, e, *refuseFront(reasonClosed, http.StatusServiceUnavailable, "the session is closing"))
		e.emit()
		return nil
	}
	defer i.group.leave()
	defer e.emit() // before the group may count as idle, and the program end
	if i.isControl(q) {
		w.Header().Del("Server")
		w.Header().Set("X-Asf-Front", "ok")
		if i.PolicyID != "" {
			w.Header().Set("X-Asf-Policy", i.PolicyID)
		}
		e.status, e.reason, e.detail = http.StatusNoContent, reasonOK, "control"
		w.WriteHeader(e.status)
		return nil
	}
	if no := i.serve(w, q, e); no != nil {
		answerFront(w, i.Protocol, e, *no)
	}
	return nil
}

// serve judges a request and passes it on, or answers the models by itself.
func (i *Inference) serve(w http.ResponseWriter, q *http.Request, e *exchange) *frontRefusal {
	r, no := i.admit(q)
	switch {
	case no != nil:
		return no
	case r.Body == "":
		i.answerModels(w, e)
		return nil
	}
	body, no := i.read(w, q)
	if no != nil {
		return no
	}
	defer body.free()
	e.up = int64(len(body.b))
	if i.replaced.Load() {
		return refuseFront(reasonClosed, http.StatusServiceUnavailable, "the session's policy has changed, try again")
	}
	facts, denied := r.Check(body.b, i.grants)
	if denied != nil {
		return deniedBody(denied)
	}
	e.facts, e.free = facts, r.Free
	if no := i.priced(e, body.b); no != nil {
		return no
	}
	if no := i.account.Enter(i.Limits.all(), time.Now()); no != nil {
		return exceeded(no)
	}
	i.forward(w, q, e, body.b)
	i.settle(e)
	return nil
}

// isControl is the positive control of the gate's probes: it shows that the token opens the front, and nothing more.
func (i *Inference) isControl(q *http.Request) bool {
	return q.Method == http.MethodGet && q.RequestURI == i.ControlPath && q.ContentLength == 0 && i.token.authorized(q.Header)
}

var (
	_ caddy.Provisioner           = (*Inference)(nil)
	_ caddy.CleanerUpper          = (*Inference)(nil)
	_ caddyhttp.MiddlewareHandler = (*Inference)(nil)
)
