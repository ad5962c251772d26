// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"asf.sandbox/caddy/front"
)

const (
	frontDeniedSlow = "denied-slow-body"
	frontBusy       = "limit-memory"

	firstPiece = 64 << 10 // bytes of a body that are made room for before any came
)

// memory bounds the bodies that one front holds at once: a body is judged as a whole before a byte of it goes on.
type memory struct {
	limit int64
	used  atomic.Int64
}

func (m *memory) take(n int64) bool {
	if m.used.Add(n) <= m.limit {
		return true
	}
	m.used.Add(-n)
	return false
}

// held is a body in memory, which is given back by free.
type held struct {
	b    []byte
	from *memory
}

func (h *held) free() { h.from.used.Add(-int64(cap(h.b))) }

// grow makes room for more, at most twice as much as there is. false means that no memory is left.
func (h *held) grow(most int64) bool {
	size := min(max(2*int64(cap(h.b)), firstPiece), most)
	if !h.from.take(size) {
		return false
	}
	b := make([]byte, len(h.b), size)
	copy(b, h.b)
	h.free()
	h.b = b
	return true
}

// read takes a request's body in. What a client announces is no reason to make room for it: only what came is.
func (i *Inference) read(w http.ResponseWriter, q *http.Request) (*held, *frontRefusal) {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(time.Duration(i.BodyTimeout)))
	defer func() { _ = rc.SetReadDeadline(time.Time{}) }()
	body, most := &held{from: i.memory}, i.MaxBody+1
	if q.ContentLength >= 0 {
		most = q.ContentLength + 1 // the end is seen without room that is never used
	}
	for {
		if len(body.b) == cap(body.b) && !body.grow(most) {
			body.free()
			return nil, refuseFront(frontBusy, http.StatusServiceUnavailable, "too many large requests at once, try again")
		}
		n, err := q.Body.Read(body.b[len(body.b):cap(body.b)])
		body.b = body.b[:len(body.b)+n]
		switch {
		case int64(len(body.b)) > i.MaxBody:
			body.free()
			return nil, i.tooLarge()
		case errors.Is(err, io.EOF):
			return body, nil
		case err != nil:
			body.free()
			return nil, brokenBody(err)
		}
	}
}

func brokenBody(err error) *frontRefusal {
	if timedOut(err) {
		return refuseFront(frontDeniedSlow, http.StatusRequestTimeout, "the body did not come in time")
	}
	return refuseFront(reasonClientGone, http.StatusBadRequest, "the request ended early")
}

// deniedBody says in a status of the protocols why a body may not pass. An unknown model is 404 at both providers, and
// clients act on that. Anything else is 400: on 403 Codex 0.171.0 tries five times more (measured).
func deniedBody(d *front.Denial) *frontRefusal {
	status := http.StatusBadRequest
	if d.Reason == front.DeniedModel {
		status = http.StatusNotFound
	}
	return &frontRefusal{reason: d.Reason, status: status, message: printable(d.Error()), key: d.Key}
}

// model is an entry of the models list, in both protocols' forms at once.
type model struct {
	ID          string `json:"id"`
	Object      string `json:"object"`
	Type        string `json:"type"`
	DisplayName string `json:"display_name"`
	Created     int64  `json:"created"`
	CreatedAt   string `json:"created_at"`
	OwnedBy     string `json:"owned_by"`
}

type modelList struct {
	Object  string  `json:"object"`
	Data    []model `json:"data"`
	HasMore bool    `json:"has_more"`
	FirstID *string `json:"first_id"`
	LastID  *string `json:"last_id"`
}

// answerModels answers with the names that the plan declares. Patterns are no names; without llm.models the list is
// empty, as only the provider knows what the key can reach.
func (i *Inference) answerModels(w http.ResponseWriter, e *exchange) {
	list := modelList{Object: "list", Data: []model{}}
	for _, name := range i.Models {
		if !strings.Contains(name, "*") {
			list.Data = append(list.Data, model{name, "model", "model", name, 0, "1970-01-01T00:00:00Z", "asf"})
		}
	}
	if n := len(list.Data); n > 0 {
		list.FirstID, list.LastID = &list.Data[0].ID, &list.Data[n-1].ID
	}
	body, err := json.Marshal(list)
	if err != nil { // strings always marshal; kept so that no error is dropped
		body = []byte(`{"object":"list","data":[]}`)
	}
	h := w.Header()
	h.Del("Server")
	h.Set("Content-Type", "application/json")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	e.status, e.reason, e.detail = http.StatusOK, reasonOK, "models"
	w.WriteHeader(e.status)
	n, _ := w.Write(body)
	e.down = int64(n)
}
