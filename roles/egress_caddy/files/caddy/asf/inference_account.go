// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"asf.sandbox/caddy/front"
	"go.uber.org/zap"
)

const (
	frontLimited  = "limit-"
	frontUnpriced = "denied-price"
	usdKey        = "llm.limits.usd_per_session"

	// Each request leaves a line with what it used. A workload can make any number, so beyond these lines there is one
	// in a while: each has the sums so far, and no token is left out of them.
	usageLines = 20000
	usageEvery = 10 * time.Second
)

// FrontLimits are the manifest's keys below llm.limits that are counted; zero is none.
type FrontLimits struct {
	RequestsPerMinute  int64 `json:"requests_per_minute,omitempty"`
	ConcurrentRequests int64 `json:"concurrent_requests,omitempty"`
	TokensPerSession   int64 `json:"tokens_per_session,omitempty"`
	// USDPerSession counts by list prices (front/prices.json); a model without one is refused.
	USDPerSession front.USD `json:"usd_per_session,omitempty"`
}

func (l FrontLimits) all() front.Limits {
	return front.Limits{PerMinute: l.RequestsPerMinute, Concurrent: l.ConcurrentRequests, Tokens: l.TokensPerSession, Cost: l.USDPerSession}
}

var limitReasons = map[string]string{
	"llm.limits.requests_per_minute": frontLimited + "requests",
	"llm.limits.concurrent_requests": frontLimited + "concurrency",
	"llm.limits.tokens_per_session":  frontLimited + "tokens",
	usdKey:                           frontLimited + "usd",
}

// exceeded is 429 in the protocol's shape. A budget that does not come back says so to clients, which would otherwise
// try for minutes.
func exceeded(no *front.Exceeded) *frontRefusal {
	retry := -1
	if no.Retry > 0 {
		retry = int((no.Retry + time.Second - 1) / time.Second)
	}
	return &frontRefusal{reason: limitReasons[no.Key], status: http.StatusTooManyRequests, message: no.Key + ": " + no.Text, key: no.Key, retry: retry}
}

// priced says what a request will cost a token, or refuses what cannot be counted under a limit of money: a model that
// the list does not know, and a tier that costs more than the list says.
func (i *Inference) priced(e *exchange, body []byte) *frontRefusal {
	e.price, e.known = front.PriceOf(i.Provider, e.facts.Model)
	if i.Provider == "" { // the embedded model
		e.known = true
	}
	if i.Limits.USDPerSession <= 0 || e.free {
		return nil
	}
	if !e.known {
		return unpriced(fmt.Sprintf("the price of model %q is not known, so that it cannot be counted", printable(e.facts.Model)))
	}
	if tier := front.DearTier(body); tier != "" {
		return unpriced(fmt.Sprintf("%s costs more than the price that is counted; leave it out", tier))
	}
	return nil
}

func unpriced(text string) *frontRefusal {
	return &frontRefusal{reason: frontUnpriced, status: http.StatusBadRequest, message: usdKey + ": " + text, key: usdKey}
}

// settle counts what a request used that was passed on, and leaves its usage line. What the provider refused, or what
// never came to it, used nothing.
func (i *Inference) settle(e *exchange) {
	var used front.Usage
	answered := e.status >= 200 && e.status <= 299 || e.reason == reasonClientGone || e.reason == reasonClosed
	if answered && !e.free {
		used = e.meter.Read(e.up, e.whole && e.reason == reasonOK)
	}
	cost := e.price.Cost(used)
	spent := i.account.Leave(used, cost, e.known, time.Now())
	if usageLog.due(time.Now()) {
		logger().Info("usage", usageFields(i.Session, e, used, cost, spent)...)
	}
}

func usageFields(session string, e *exchange, used front.Usage, cost front.USD, spent front.Spent) []zap.Field {
	fields := []zap.Field{
		zap.String("session", session), zap.String("model", printable(e.facts.Model)), zap.Int("status", e.status), zap.String("outcome", e.reason),
		zap.Int64("input_tokens", used.Input), zap.Int64("cached_tokens", used.Cached), zap.Int64("cache_write_tokens", used.Written),
		zap.Int64("output_tokens", used.Output), zap.Bool("estimated", !used.Reported && used.Total() > 0), zap.Int64("ms", time.Since(e.start).Milliseconds()),
	}
	if e.known {
		fields = append(fields, zap.Reflect("cost_usd", cost))
	}
	if !e.first.IsZero() {
		fields = append(fields, zap.Int64("first_ms", e.first.Sub(e.start).Milliseconds()))
	}
	return append(fields, zap.Any("so_far", spent))
}

// paced says which usage lines are written.
type paced struct {
	mu    sync.Mutex
	lines int
	last  time.Time
}

var usageLog paced

func (p *paced) due(now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lines >= usageLines && now.Sub(p.last) < usageEvery {
		return false
	}
	p.lines, p.last = p.lines+1, now
	return true
}
