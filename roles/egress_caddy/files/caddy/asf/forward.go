// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"asf.sandbox/caddy/front"
)

const (
	maxHeaderValue = 1024
	maxErrorBody   = 64 << 10
)

// requestHeaders go on to the broker; "*" stands for any ending. Everything else is dropped: cookies, forwarding and
// override headers, the client's credentials, and headers that steer the broker.
var requestHeaders = []string{
	"Accept", "Content-Type", "User-Agent", "Anthropic-Version", "Anthropic-Beta", "Openai-Beta", "X-Stainless-*",
}

// responseHeaders come back from the broker. Its own (versions, cost, model ids, keys' hashes) and the provider's
// account headers do not.
var responseHeaders = []string{
	"Content-Type", "Cache-Control", "Request-Id", "X-Request-Id", "Retry-After", "Retry-After-Ms", "X-Should-Retry",
	"Anthropic-Ratelimit-*", "X-Ratelimit-*", "Openai-Processing-Ms",
}

func listed(name string, list []string) bool {
	for _, l := range list {
		if prefix, any := strings.CutSuffix(l, "*"); any && strings.HasPrefix(name, prefix) || name == l {
			return true
		}
	}
	return false
}

// copyListed copies listed headers whose value is short and has nothing that the redactor would take out.
func copyListed(dst, src http.Header, list []string, clean func(string) bool) {
	for name, values := range src {
		if !listed(name, list) {
			continue
		}
		for _, v := range values {
			if len(v) <= maxHeaderValue && clean(v) {
				dst.Add(name, v)
			}
		}
	}
}

// forward sends an admitted request to the broker and relays the answer. Who hangs up ends a stream, and the provider
// its work with it; an answer that comes as a whole is paid for as a whole, so it is waited for and counted.
func (i *Inference) forward(w http.ResponseWriter, q *http.Request, e *exchange, body []byte) {
	parent := q.Context()
	if !e.facts.Stream {
		parent = context.WithoutCancel(parent)
	}
	ctx, cancel := i.group.context(parent)
	defer cancel()
	out, err := i.request(ctx, q, body)
	if err != nil {
		answerFront(w, i.Protocol, e, *refuseFront(reasonInternal, http.StatusInternalServerError, "the request could not be built"))
		return
	}
	resp, err := i.transport.RoundTrip(out)
	if err != nil {
		answerFront(w, i.Protocol, e, *i.brokerTrouble(ctx, err))
		return
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode < 200 || resp.StatusCode > 299 || opaque(resp) {
		i.relayError(w, resp, e)
		return
	}
	if streamed(resp) {
		defer context.AfterFunc(q.Context(), cancel)()
	}
	i.relay(ctx, w, resp, e)
}

func streamed(resp *http.Response) bool {
	kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type"))
	return kind == "text/event-stream"
}

// opaque tells of a body that cannot be looked through. Nobody asked for one: Accept-Encoding is not forwarded.
func opaque(resp *http.Response) bool {
	e := resp.Header.Get("Content-Encoding")
	return e != "" && !strings.EqualFold(e, "identity")
}

// request builds what the broker sees. The target is one of the table's own strings by now, byte for byte.
func (i *Inference) request(ctx context.Context, q *http.Request, body []byte) (*http.Request, error) {
	out, err := http.NewRequestWithContext(ctx, q.Method, "http://"+i.Upstream+q.RequestURI, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	copyListed(out.Header, q.Header, requestHeaders, func(string) bool { return true })
	for _, name := range []string{"Anthropic-Beta", "Openai-Beta"} {
		if betas := i.grants.Betas(strings.Join(out.Header.Values(name), ",")); betas != "" {
			out.Header.Set(name, betas)
		} else {
			out.Header.Del(name)
		}
	}
	if out.Header.Get("User-Agent") == "" {
		out.Header["User-Agent"] = nil // or net/http sends its own
	}
	out.Header.Set("Authorization", "Bearer "+i.key)
	return out, nil
}

// brokerTrouble names why there is no answer. A broker that cannot be reached is starting or restarting: 503 with
// Retry-After and the protocol's overloaded error is what makes clients wait and try again (measured with Claude Code).
func (i *Inference) brokerTrouble(ctx context.Context, err error) *frontRefusal {
	var dial *net.OpError
	switch {
	case i.group.isStopped():
		return refuseFront(reasonClosed, http.StatusServiceUnavailable, "the session is closing")
	case ctx.Err() != nil:
		return refuseFront(reasonClientGone, http.StatusBadRequest, "the request ended early")
	case timedOut(err) && !(errors.As(err, &dial) && dial.Op == "dial"):
		return refuseFront(frontBrokerTimeout, http.StatusGatewayTimeout, "the broker did not answer in time")
	}
	return refuseFront(frontBrokerStarting, http.StatusServiceUnavailable, "the broker is starting, try again")
}

// relay passes a good answer on: a stream of events piece by piece, anything else, which is of no use before its end,
// as a whole when it is not large.
func (i *Inference) relay(ctx context.Context, w http.ResponseWriter, resp *http.Response, e *exchange) {
	h := w.Header()
	h.Del("Server")
	copyListed(h, resp.Header, responseHeaders, i.clean)
	e.status, e.reason = resp.StatusCode, reasonOK
	exact := &exactFilter{secrets: i.hidden}
	if streamed(resp) {
		events := &eventFilter{exact: exact, redact: i.redact, seen: e.meter.Event, from: i.memory}
		defer events.free()
		i.stream(ctx, w, resp.Body, e, events)
		return
	}
	room, _ := answers.Get().(*[]byte)
	defer answers.Put(room)
	body, err := readSome((*room)[:0], resp.Body)
	*room = body[:0]
	switch {
	case err == nil: // there is more
		pieces := &metered{io.MultiReader(bytes.NewReader(body), resp.Body), &e.meter}
		i.stream(ctx, w, pieces, e, exact)
	case errors.Is(err, io.EOF):
		i.whole(w, e, exact, body)
	case ctx.Err() != nil:
		i.breakOff(ctx, http.NewResponseController(w), e)
	default:
		answerFront(w, i.Protocol, e, *refuseFront(frontBrokerError, http.StatusBadGateway, "the broker broke off its answer"))
	}
}

const maxWhole = 256 << 10 // bytes of an answer that is held until its end, on each connection

// answers are buffers for whole answers.
var answers = sync.Pool{New: func() any { b := make([]byte, 0, 128<<10); return &b }}

// readSome reads until the end (io.EOF), an error, or maxWhole (nil).
func readSome(b []byte, from io.Reader) ([]byte, error) {
	for len(b) < maxWhole {
		if len(b) == cap(b) {
			b = append(make([]byte, 0, 2*cap(b)), b...)
		}
		n, err := from.Read(b[len(b):cap(b)])
		if b = b[:len(b)+n]; err != nil {
			return b, err
		}
	}
	return b, nil
}

func (i *Inference) whole(w http.ResponseWriter, e *exchange, exact *exactFilter, body []byte) {
	e.meter.Document(body)
	e.whole, e.first = true, time.Now()
	body = exact.replace(body)
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(e.status)
	n, err := w.Write(body)
	if e.down = int64(n); err != nil {
		e.reason = reasonClientGone
	}
}

// metered shows the pieces of an answer to the meter as they are read.
type metered struct {
	io.Reader
	meter *front.Meter
}

func (m *metered) Read(p []byte) (int, error) {
	n, err := m.Reader.Read(p)
	m.meter.Piece(p[:n])
	if errors.Is(err, io.EOF) {
		m.meter.End()
	}
	return n, err
}

// stream passes an answer on: each piece is flushed as it comes.
func (i *Inference) stream(ctx context.Context, w http.ResponseWriter, source io.Reader, e *exchange, f filter) {
	w.WriteHeader(e.status)
	rc := http.NewResponseController(w)
	_ = rc.Flush() // a client that is gone is noticed at the first piece
	buf := make([]byte, 32<<10)
	for {
		n, err := source.Read(buf)
		piece := f.push(buf[:n])
		if errors.Is(err, io.EOF) {
			piece = append(piece[:len(piece):len(piece)], f.finish()...)
		}
		if len(piece) > 0 {
			if e.first.IsZero() {
				e.first = time.Now()
			}
			sent, werr := w.Write(piece)
			e.down += int64(sent)
			if werr != nil || rc.Flush() != nil {
				e.reason = reasonClientGone
				return
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			e.whole = true
			return
		default:
			i.breakOff(ctx, rc, e)
			return
		}
	}
}

// breakOff closes the client's connection without the final chunk, so that a cut answer is not taken for a whole one.
func (i *Inference) breakOff(ctx context.Context, rc *http.ResponseController, e *exchange) {
	switch {
	case i.group.isStopped():
		e.reason = reasonClosed
	case ctx.Err() != nil:
		e.reason = reasonClientGone
	default:
		e.reason, e.detail = frontBrokerError, "the broker broke off its answer"
	}
	if conn, _, err := rc.Hijack(); err == nil {
		_ = conn.Close()
	}
}

func (i *Inference) clean(value string) bool {
	return !strings.Contains(value, i.key)
}

// relayError writes an upstream's refusal anew: same status, the protocol's shape, a redacted message, and nothing
// else of what came (case B5). A redirect is an error: no route of the table has one.
func (i *Inference) relayError(w http.ResponseWriter, resp *http.Response, e *exchange) {
	raw, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	status := resp.StatusCode
	if status < 400 || status > 599 {
		status = http.StatusBadGateway
	}
	message, kind, code := parseError(raw)
	refused := status == http.StatusUnauthorized || status == http.StatusForbidden
	if refused {
		message = "the provider or the broker refused its credentials or their rights" // such texts echo keys
	}
	if kind == "" {
		kind = errorType(i.Protocol, status)
	}
	h := w.Header()
	h.Del("Server")
	copyListed(h, resp.Header, responseHeaders, i.clean)
	if refused {
		h.Set("X-Should-Retry", "false") // no try can help, and Claude Code would try for minutes (measured)
	}
	h.Set("Content-Type", "application/json")
	h.Set("X-Asf-Inference", frontBrokerError)
	body := errorBody(i.Protocol, kind, code, i.redact.text(message))
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	n, _ := w.Write(body)
	e.status, e.reason, e.down = status, frontBrokerError, int64(n)
}

// wordShape is what an error's type and code may look like to be passed on: context_length_exceeded.
var wordShape = regexp.MustCompile(`^[a-z_]{1,48}$`)

// parseError finds message, type and code in the shapes that the broker uses. An unknown shape gives no text at all.
func parseError(raw []byte) (message, kind, code string) {
	var v struct {
		Error  json.RawMessage `json:"error"`
		Detail json.RawMessage `json:"detail"` // FastAPI's own errors
	}
	message = "the provider or the broker answered with an error"
	if json.Unmarshal(raw, &v) != nil {
		return message, "", ""
	}
	var inner struct {
		Message string `json:"message"`
		Type    any    `json:"type"`
		Code    any    `json:"code"`
	}
	var text string
	switch {
	case json.Unmarshal(v.Error, &inner) == nil && inner.Message != "":
		message = inner.Message
	case json.Unmarshal(v.Error, &text) == nil && text != "":
		message = text
	case json.Unmarshal(v.Detail, &text) == nil && text != "":
		message = text
	}
	return message, word(inner.Type), word(inner.Code)
}

func word(v any) string {
	if s, ok := v.(string); ok && wordShape.MatchString(s) {
		return s
	}
	return ""
}
