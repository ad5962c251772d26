// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"bytes"

	"asf.sandbox/caddy/front"
)

const (
	maxLine  = 8 << 20  // of an event stream; a longer line is relayed without a look inside
	lineStep = 64 << 10 // bytes of a line that each stream may hold; beyond them room is taken from what bodies share
)

// filter passes a response body through in pieces. What push returns can be sent at once; finish returns the rest.
// Both results are valid until the next call.
type filter interface {
	push(p []byte) []byte
	finish() []byte
}

// exactFilter replaces known secrets. It holds back only a tail that may be the beginning of one, so an ordinary
// piece is never delayed.
type exactFilter struct {
	secrets []*front.Searcher
	carry   []byte
}

func (f *exactFilter) push(p []byte) []byte {
	if len(f.carry) > 0 { // rare: the piece before ended like the beginning of a secret
		p = append(f.carry, p...)
	}
	b := f.replace(p)
	keep := f.tail(b)
	f.carry = bytes.Clone(b[len(b)-keep:])
	return b[:len(b)-keep]
}

func (f *exactFilter) finish() []byte {
	b := f.carry
	f.carry = nil
	return b
}

func (f *exactFilter) replace(b []byte) []byte {
	for _, s := range f.secrets {
		if s.Index(b) >= 0 {
			b = bytes.ReplaceAll(b, s.Text(), []byte(redacted))
		}
	}
	return b
}

// tail is the length of the longest end of b that begins a secret.
func (f *exactFilter) tail(b []byte) int {
	longest := 0
	for _, secret := range f.secrets {
		s := secret.Text()
		for n := min(len(s)-1, len(b)); n > longest; n-- {
			if bytes.HasSuffix(b, s[:n]) {
				longest = n
			}
		}
	}
	return longest
}

// eventFilter redacts error events of a server-sent event stream (WHATWG HTML section 9.2), line by line: an event is
// of no use to a client before its line is complete, so nothing is delayed that could be used.
type eventFilter struct {
	exact  *exactFilter
	redact *redactor
	seen   func(doc []byte) // is shown each event's data
	line   []byte
	long   bool    // inside a line that is over the limit
	from   *memory // where room for long lines is taken
	taken  int64
}

// fits makes room for a line of n bytes, or says that it must pass without a look inside.
func (f *eventFilter) fits(n int) bool {
	for int64(n) > lineStep+f.taken {
		more := max(lineStep, f.taken)
		if n > maxLine || !f.from.take(more) {
			return false
		}
		f.taken += more
	}
	return true
}

// free gives back what lines took.
func (f *eventFilter) free() {
	if f.taken > 0 {
		f.from.used.Add(-f.taken)
		f.taken = 0
	}
}

func (f *eventFilter) push(p []byte) []byte {
	var out []byte
	for len(p) > 0 {
		i := bytes.IndexByte(p, '\n')
		if i < 0 {
			return append(out, f.partial(p)...)
		}
		out = append(out, f.complete(p[:i+1])...)
		p = p[i+1:]
	}
	return out
}

// partial takes the beginning of a line; it returns something only for a line beyond the limit.
func (f *eventFilter) partial(p []byte) []byte {
	if f.long {
		return f.exact.push(p)
	}
	if f.fits(len(f.line) + len(p)) {
		f.line = append(f.line, p...)
		return nil
	}
	head := append(f.line, p...)
	f.long, f.line = true, nil
	f.free()
	return f.exact.push(head)
}

func (f *eventFilter) complete(end []byte) []byte {
	if f.long {
		f.long = false
		return append(bytes.Clone(f.exact.push(end)), f.exact.finish()...)
	}
	line := append(f.line, end...)
	f.line = nil
	f.free()
	return f.exact.replace(f.redactLine(line))
}

func (f *eventFilter) redactLine(line []byte) []byte {
	doc, found := bytes.CutPrefix(line, []byte("data:"))
	if !found {
		return line
	}
	doc = bytes.TrimSpace(doc)
	if f.seen != nil {
		f.seen(doc)
	}
	clean := f.redact.event(doc)
	if bytes.Equal(clean, doc) {
		return line
	}
	return append(append([]byte("data: "), clean...), '\n')
}

func (f *eventFilter) finish() []byte {
	if f.long {
		return f.exact.finish()
	}
	line := f.line
	f.line = nil
	return f.exact.replace(f.redactLine(line))
}
