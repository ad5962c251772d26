// SPDX-License-Identifier: BSD-4-Clause

package front

import (
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"time"
)

// Limits are a session's; zero is none.
type Limits struct {
	PerMinute  int64
	Concurrent int64
	Tokens     int64
	Cost       USD
}

// Spent is what a session has used so far, as it is kept.
type Spent struct {
	Requests int64 `json:"requests"`
	Input    int64 `json:"input_tokens"`
	Cached   int64 `json:"cached_tokens"`
	Written  int64 `json:"cache_write_tokens"`
	Output   int64 `json:"output_tokens"`
	Cost     USD   `json:"cost_usd"`
	Unpriced int64 `json:"unpriced_requests"` // that used tokens of a model whose price nobody knows
}

// Tokens is what counts against the budget.
func (s Spent) Tokens() int64 { return s.Input + s.Cached + s.Written + s.Output }

// Exceeded is a limit that a request meets.
type Exceeded struct {
	Key   string        // of the manifest
	Text  string        // what is used, what is left, and when
	Retry time.Duration // 0: never in this session
}

// Account counts for one session. It outlives a configuration, and by its file the process.
type Account struct {
	mu      sync.Mutex
	spent   Spent
	running int64
	second  int64     // of the newest of the counts
	counts  [60]int64 // requests by second, the newest at second % 60
	file    string
	saved   time.Time
	dirty   bool
	due     bool // a save is
}

// saveEvery is what a program that is killed may forget.
const saveEvery = 100 * time.Millisecond

var (
	accountsMu sync.Mutex
	accounts   = map[string]*Account{}
)

// Open returns the session's account: the one that this process has, else what the file says, else a new one.
// A file that cannot be read is an error: a budget that starts over is none.
func Open(session, file string) (*Account, error) {
	accountsMu.Lock()
	defer accountsMu.Unlock()
	if a := accounts[session]; a != nil && a.file == file {
		return a, nil
	}
	a := &Account{file: file}
	if file != "" {
		switch raw, err := os.ReadFile(file); {
		case os.IsNotExist(err):
		case err != nil:
			return nil, fmt.Errorf("state_file: %w", err)
		default:
			if err := json.Unmarshal(raw, &a.spent); err != nil {
				return nil, fmt.Errorf("state_file: %s: %w", file, err)
			}
		}
	}
	accounts[session] = a
	return a, nil
}

// Enter counts a request in, or says which limit it meets. Who entered must leave.
func (a *Account) Enter(l Limits, now time.Time) *Exceeded {
	a.mu.Lock()
	defer a.mu.Unlock()
	if tokens := a.spent.Tokens(); l.Tokens > 0 && tokens >= l.Tokens {
		return &Exceeded{"llm.limits.tokens_per_session", fmt.Sprintf("%d of the session's %d tokens are used, 0 are left, and they do not come back", tokens, l.Tokens), 0}
	}
	if l.Cost > 0 && a.spent.Cost >= l.Cost {
		return &Exceeded{"llm.limits.usd_per_session", fmt.Sprintf("%s of the session's %s are spent, nothing is left, and it does not come back", a.spent.Cost, l.Cost), 0}
	}
	if l.Concurrent > 0 && a.running >= l.Concurrent {
		return &Exceeded{"llm.limits.concurrent_requests", fmt.Sprintf("%d of %d requests are running, 0 are left until one ends", a.running, l.Concurrent), time.Second}
	}
	a.turn(now.Unix())
	if wait := a.wait(l.PerMinute); wait > 0 {
		return &Exceeded{"llm.limits.requests_per_minute", fmt.Sprintf("%d requests in a minute are used, 0 are left; the next may come in %d s", l.PerMinute, wait), time.Duration(wait) * time.Second}
	}
	a.counts[a.second%60]++
	a.running++
	a.spent.Requests++
	return nil
}

// turn forgets the seconds that are over.
func (a *Account) turn(now int64) {
	for i := max(a.second+1, now-59); i <= now; i++ {
		a.counts[i%60] = 0
	}
	a.second = max(a.second, now)
}

// wait is in how many seconds a request may come; 0: now.
func (a *Account) wait(limit int64) int64 {
	sum := int64(0)
	for back := range int64(60) {
		if sum += a.counts[((a.second-back)%60+60)%60]; limit > 0 && sum >= limit {
			return 60 - back
		}
	}
	return 0
}

// Leave counts a request out, with what it used and what that cost; priced is false when nobody knows.
func (a *Account) Leave(u Usage, cost USD, priced bool, now time.Time) Spent {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.running--
	a.spent.Input += u.Input
	a.spent.Cached += u.Cached
	a.spent.Written += u.Written
	a.spent.Output += u.Output
	a.spent.Cost += cost
	if !priced && u.Total() > 0 {
		a.spent.Unpriced++
	}
	switch a.dirty = true; {
	case now.Sub(a.saved) >= saveEvery:
		a.save(now)
	case !a.due:
		a.due = true
		time.AfterFunc(saveEvery, a.saveLater)
	}
	return a.spent
}

func (a *Account) saveLater() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.due = false
	a.save(time.Now())
}

// save writes the file whole or not at all. What cannot be written now is written the next time.
func (a *Account) save(now time.Time) {
	a.saved = now
	if a.file == "" || !a.dirty {
		return
	}
	raw, err := json.Marshal(a.spent)
	if err == nil {
		err = os.WriteFile(a.file+".new", raw, 0o600)
	}
	if err == nil {
		err = os.Rename(a.file+".new", a.file)
	}
	a.dirty = err != nil
}

// Save writes what all accounts hold. It is for a program that is about to exit.
func Save() {
	accountsMu.Lock()
	defer accountsMu.Unlock()
	for _, a := range accounts {
		a.mu.Lock()
		a.save(time.Now())
		a.mu.Unlock()
	}
}
