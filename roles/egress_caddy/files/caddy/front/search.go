// SPDX-License-Identifier: BSD-4-Clause

package front

import "bytes"

// Searcher finds one text in others by the last byte of each window (Horspool 1980): it steps over as many bytes as the
// text is long, where bytes.Index looks at each byte and stops at every one that begins the text.
type Searcher struct {
	text []byte
	step [256]int
}

// NewSearcher prepares the search for a text, which must not be empty.
func NewSearcher(text string) *Searcher {
	s := &Searcher{text: []byte(text)}
	for i := range s.step {
		s.step[i] = len(text)
	}
	for i := range len(text) - 1 {
		s.step[text[i]] = len(text) - 1 - i
	}
	return s
}

// Text is what is searched for.
func (s *Searcher) Text() []byte { return s.text }

// Index is where the text stands in b first, -1 when it does not.
func (s *Searcher) Index(b []byte) int {
	last := len(s.text) - 1
	for end := last; end < len(b); end += s.step[b[end]] {
		if b[end] == s.text[last] && bytes.Equal(b[end-last:end], s.text[:last]) {
			return end - last
		}
	}
	return -1
}
