// SPDX-License-Identifier: BSD-4-Clause

package front

import "encoding/json"

// Usage is what one request used. The providers' three ways to say it are made one: Input is what was read anew,
// Cached what was read from a cache, Written what was put into one (Hour of it for an hour, which costs more).
type Usage struct {
	Input, Cached, Written, Output int64
	Reported                       bool // by the provider; else estimated
	Hour                           int64
}

// Total is what counts against a budget.
func (u Usage) Total() int64 { return u.Input + u.Cached + u.Written + u.Output }

// reported is a usage object of any of the three protocols.
type reported struct {
	InputTokens   int64 `json:"input_tokens"`
	OutputTokens  int64 `json:"output_tokens"`
	CacheCreation int64 `json:"cache_creation_input_tokens"` // Messages: not within input_tokens
	CacheRead     int64 `json:"cache_read_input_tokens"`
	CacheOf       struct {
		Hour int64 `json:"ephemeral_1h_input_tokens"` // within cache_creation_input_tokens
	} `json:"cache_creation"`
	Prompt        int64 `json:"prompt_tokens"` // Chat Completions
	Completion    int64 `json:"completion_tokens"`
	PromptDetails struct {
		Cached int64 `json:"cached_tokens"` // within prompt_tokens
	} `json:"prompt_tokens_details"`
	InputDetails struct {
		Cached int64 `json:"cached_tokens"` // Responses: within input_tokens
	} `json:"input_tokens_details"`
	// Messages: what the provider did for one answer, compactions included, which the numbers above leave out.
	Iterations []reported `json:"iterations"`
}

func (r *reported) usage() Usage {
	within := max(r.PromptDetails.Cached, r.InputDetails.Cached)
	u := Usage{Input: max(r.InputTokens, r.Prompt) - within, Cached: within, Written: r.CacheCreation, Output: max(r.OutputTokens, r.Completion)}
	u.Cached = max(u.Cached, r.CacheRead)
	u.Input, u.Cached, u.Written, u.Output, u.Hour = bounded(u.Input), bounded(u.Cached), bounded(u.Written), bounded(u.Output), bounded(r.CacheOf.Hour)
	var sum Usage
	for n := range r.Iterations {
		one := r.Iterations[n].usage()
		sum = Usage{bounded(sum.Input + one.Input), bounded(sum.Cached + one.Cached), bounded(sum.Written + one.Written), bounded(sum.Output + one.Output), false, bounded(sum.Hour + one.Hour)}
	}
	return most(u, sum)
}

// most is the larger number of each kind: no report lowers another.
func most(a, b Usage) Usage {
	return Usage{max(a.Input, b.Input), max(a.Cached, b.Cached), max(a.Written, b.Written), max(a.Output, b.Output), a.Reported || b.Reported, max(a.Hour, b.Hour)}
}

// bounded keeps a number within what a session can add up.
func bounded(n int64) int64 { return min(max(n, 0), 1<<40) }

// Meter reads the usage out of an answer as it passes.
type Meter struct {
	usage   Usage
	bundled int64 // bytes of large events of a stream, beyond eventSize: they hold many tokens
	events  int64 // of a stream: an estimate of its tokens when nobody reports them
	size    int64 // of an answer that is no stream
	tail    []byte
	// final: a report came that may be the last. Of a stream it is when the stream ends as it should; message_start's, which
	// comes before the answer, never is. exact: it is that of a whole answer that is no stream.
	final, exact bool
}

var usageKey = NewSearcher(`"usage"`)

const eventSize = 512 // bytes that an event of one token has at most; what goes beyond them is text

// Event looks at one JSON document of a stream. Reports are cumulative: the largest number of each kind counts.
func (m *Meter) Event(doc []byte) {
	m.events++
	m.bundled += max(0, int64(len(doc))-eventSize)
	if usageKey.Index(doc) < 0 { // within a text its quotes are escaped
		return
	}
	var v struct {
		Usage   *reported `json:"usage"`
		Message struct {  // message_start
			Usage *reported `json:"usage"`
		} `json:"message"`
		Response struct { // response.completed
			Usage *reported `json:"usage"`
		} `json:"response"`
	}
	if json.Unmarshal(doc, &v) != nil {
		return
	}
	for _, r := range []*reported{v.Usage, v.Message.Usage, v.Response.Usage} {
		m.add(r)
	}
	m.final = m.final || v.Usage != nil || v.Response.Usage != nil
}

func (m *Meter) add(r *reported) {
	if r == nil {
		return
	}
	m.usage = most(m.usage, r.usage())
	m.usage.Reported = true
}

// Document looks at a whole answer. Only the key of the document itself counts: a tool's input may have one too.
func (m *Meter) Document(doc []byte) {
	m.size += int64(len(doc))
	raw := atEnd(doc[max(0, len(doc)-maxTail):])
	if raw == nil {
		raw = member(doc, "usage")
	}
	m.report(raw)
}

func (m *Meter) report(raw []byte) {
	var r *reported
	if raw != nil && json.Unmarshal(raw, &r) == nil && r != nil {
		m.add(r)
		m.exact = true
	}
}

// Piece looks at a piece of an answer that is too large to be held: its end may tell what was used.
func (m *Meter) Piece(p []byte) {
	m.size += int64(len(p))
	m.tail = append(m.tail, p[max(0, len(p)-maxTail):]...)
	m.tail = m.tail[max(0, len(m.tail)-maxTail):]
}

// End is for an answer in pieces that came to its end.
func (m *Meter) End() { m.report(atEnd(m.tail)) }

const maxTail = 4096 // bytes at the end of an answer in which its usage is looked for first

// atEnd is the value of the document's own usage, when it stands in this end of it, where providers put it. In a text the
// quotes of the key would be escaped, and what follows must end the document, so it belongs to nothing inside.
func atEnd(tail []byte) []byte {
	s := &scanner{b: tail}
	for {
		at := usageKey.Index(tail[s.i:])
		if at < 0 {
			return nil
		}
		s.i += at + len(usageKey.Text())
		next := s.i
		if err := s.expect(':'); err == nil {
			start := s.i
			if err = s.skip(1); err == nil {
				if raw := tail[start:s.i]; s.lastMembers() {
					return raw
				}
			}
		}
		s.i, s.keys = next, nil
	}
}

// lastMembers tells whether what follows a member are members of the same object, and then the document's end.
func (s *scanner) lastMembers() bool {
	for {
		again, err := s.more('}')
		if err == nil && !again {
			return s.finish() == nil
		}
		if err == nil {
			_, err = s.key()
		}
		if err != nil || s.skip(1) != nil {
			return false
		}
	}
}

// member is the value of a key of an object, nil without one.
func member(doc []byte, name string) []byte {
	s := &scanner{b: doc}
	if s.expect('{') != nil {
		return nil
	}
	for again := true; again; {
		key, err := s.key()
		start := s.i
		if err == nil {
			err = s.skip(1)
		}
		if err == nil && string(key) == name {
			return doc[start:s.i]
		}
		if err == nil {
			again, err = s.more('}')
		}
		if err != nil {
			return nil
		}
	}
	return nil
}

// Read is what was used. When an answer broke off, or a provider reports nothing, it is estimated: four bytes of a
// request or of an answer that is no stream are a token, and so is each event of a stream. A client must not win anything by hanging up early.
func (m *Meter) Read(requestBytes int64, complete bool) Usage {
	u := m.usage
	if m.exact || m.final && complete {
		return u
	}
	if u.Input+u.Cached+u.Written == 0 {
		u.Input = (requestBytes + 3) / 4
	}
	u.Output, u.Reported = max(u.Output, m.events+(m.bundled+3)/4, (m.size+3)/4), false
	return u
}
