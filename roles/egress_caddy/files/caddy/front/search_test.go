// SPDX-License-Identifier: BSD-4-Clause

package front

import (
	"bytes"
	"testing"
)

// FuzzSearch: the search finds what bytes.Index finds.
func FuzzSearch(f *testing.F) {
	for _, pair := range [][2]string{{"a", "a"}, {"ab", "aab"}, {"usage", `{"usage":1}`}, {"aaab", "aaaaaaaab"}, {"abcabd", "abcabcabd"}, {"x", ""}, {"xy", "x"}} {
		f.Add(pair[0], []byte(pair[1]))
	}
	f.Fuzz(func(t *testing.T, text string, in []byte) {
		if text == "" {
			return
		}
		for _, b := range [][]byte{in, append(in, text...), append([]byte(text), in...)} {
			if got, want := NewSearcher(text).Index(b), bytes.Index(b, []byte(text)); got != want {
				t.Errorf("%q in %q: %d, want %d", text, b, got, want)
			}
		}
	})
}
