// SPDX-License-Identifier: BSD-4-Clause

package front

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"
)

// document scans a whole document for its form.
func document(b []byte) error {
	if !utf8.Valid(b) {
		return errUTF8
	}
	s := &scanner{b: b}
	if err := s.skip(0); err != nil {
		return err
	}
	return s.finish()
}

func nested(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }

func manyKeys(n int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `,"k%d":0`, i)
	}
	return "{" + b.String()[1:] + "}"
}

// TestScan: what is one document for every reader, and what is not.
func TestScan(t *testing.T) {
	for text, want := range map[string]error{
		`{}`: nil, `[]`: nil, ` {"a" : [1, -2.5e+3, true , false,null, "x"] } `: nil, `"\u0000\ud83d\ude00\/\b\f\n\r\t\"\\"`: nil, `0`: nil, `-0`: nil,
		`9223372036854775807`: nil, `18446744073709551615`: nil, `-9223372036854775808`: nil, `1.7976931348623157e308`: nil, `1e-400`: nil,
		`{"a":{"x":1},"b":{"x":1}}`: nil, `{"a":1,"A":2}`: nil, "\"\u2028 \u00e9\"": nil, nested(maxDepth): nil, manyKeys(maxKeys): nil, `"` + "\x7f" + `"`: nil,
		``: errEnd, ` `: errEnd, `{`: errEnd, `{"a"`: errEnd, `{"a":`: errEnd, `{"a":1`: errEnd, `[1`: errEnd, `"abc`: errEnd, `"abc\`: errEnd, `tru`: errEnd, `-`: errEnd,
		`{a:1}`: errSyntax, `{'a':1}`: errSyntax, `{"a":1,}`: errSyntax, `[1,]`: errSyntax, `[,1]`: errSyntax, `[1 2]`: errSyntax, `{"a" 1}`: errSyntax, `NaN`: errSyntax,
		`Infinity`: errSyntax, `01`: errAfter, `+1`: errSyntax, `.5`: errSyntax, `1.`: errEnd, `1.x`: errSyntax, `1e`: errEnd, `1ex`: errSyntax, `True`: errSyntax, `nul1`: errSyntax,
		"\ufeff{}": errSyntax, `{} {}`: errAfter, `{}x`: errAfter, "{}\x00": errAfter, "\x00": errSyntax, `// x`: errSyntax, `{"a":1/**/}`: errSyntax, "\v1": errSyntax, "\u00a01": errSyntax,
		"\"a\nb\"": errControl, "\"\x00\"": errControl, "\"aaaaaaaaaaaaaaaaaaaaaaa\x1f\"": errControl, `"\x"`: errEscape, `"\u12g4"`: errEscape, `"\u12`: errEscape, `"\'"`: errEscape,
		`"\ud800"`: errSurrogate, `"\udc00"`: errSurrogate, `"\ud800\ud800"`: errSurrogate, `"\ud800x"`: errSurrogate, `"\ud83d\u0041"`: errSurrogate, `{"\ud800":1}`: errSurrogate,
		"\"\xff\"": errUTF8, "\"\xed\xa0\x80\"": errUTF8, "\"\xc0\xaf\"": errUTF8, "\xff": errUTF8,
		`{"a":1,"a":2}`: errDuplicate, `{"a":1,"\u0061":2}`: errDuplicate, `[{"x":{"b":0,"b":0}}]`: errDuplicate, `{"":1,"":2}`: errDuplicate,
		strings.TrimSuffix(manyKeys(100), "}") + `,"k7":0}`: errDuplicate, strings.TrimSuffix(manyKeys(fewKeys), "}") + `,"k0":0}`: errDuplicate,
		nested(maxDepth + 1): errDepth, strings.Repeat(`{"a":`, 200): errDepth, manyKeys(maxKeys + 1): errKeys, `{"` + strings.Repeat("k", maxKey+1) + `":1}`: errKeyLength,
		`1e309`: errNumber, `-1e999`: errNumber, `18446744073709551616`: errNumber, `-9223372036854775809`: errNumber, strings.Repeat("1", 65): errNumber,
		`1e99`: nil, `1e100`: nil, `1e+308`: nil, `1e0000000000000000000000000000000000000001`: nil, `1e0309`: errNumber, `[9999999999999999999]`: nil, `[99999999999999999999]`: errNumber,
		`[123456789012345678]`: nil, `[-9223372036854775808]`: nil, `[1.]`: errSyntax, `[1e]`: errSyntax, `[-]`: errSyntax, `[1E5,1.25e-7]`: nil, `[012]`: errSyntax,
		"{\"a\":[" + strings.TrimSuffix(strings.Repeat(manyKeys(20)+",", 5), ",") + "]}": nil, `{"x":` + manyKeys(30) + `,` + manyKeys(30)[1:]: nil,
		`0.` + strings.Repeat("1", 63): errNumber, `1` + strings.Repeat("0", 4400): errNumber,
	} {
		if got := document([]byte(text)); got != want {
			t.Errorf("%.60q: %v, want %v", text, got, want)
		}
	}
}

// events reads a document with the standard library's tokens, which, unlike its trees, keep both of two equal keys.
func events(b []byte) ([]any, error) {
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.UseNumber()
	var out []any
	for {
		t, err := d.Token()
		if err == io.EOF {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		out = append(out, t)
	}
}

// sameReading checks that encoding/json accepts a document, keeps every key of it, and changes nothing when it writes
// the document out and reads it again: no replaced characters, no number out of range.
func sameReading(b []byte) error {
	if !json.Valid(b) {
		return fmt.Errorf("encoding/json refuses it")
	}
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	again, err := json.Marshal(v)
	if err != nil {
		return err
	}
	var w any
	if err := json.Unmarshal(again, &w); err != nil || !reflect.DeepEqual(v, w) {
		return fmt.Errorf("it is another document when written out: %v", err)
	}
	tokens, err := events(b)
	if err != nil {
		return err
	}
	return sameTokens(v, tokens)
}

// sameTokens compares how many scalars, keys and ends a tree and the token stream have: a tree has lost a key that
// stood twice. A string with U+FFFD must have had it in the text.
func sameTokens(v any, tokens []any) error {
	n := 0
	var count func(any)
	count = func(v any) {
		switch x := v.(type) {
		case map[string]any:
			n += 2
			for _, y := range x {
				n++
				count(y)
			}
		case []any:
			n += 2
			for _, y := range x {
				count(y)
			}
		case float64:
			n++
			if math.IsInf(x, 0) || math.IsNaN(x) {
				n += 1 << 20
			}
		default:
			n++
		}
	}
	count(v)
	if n != len(tokens) {
		return fmt.Errorf("a tree of %d, tokens %d", n, len(tokens))
	}
	return nil
}

// FuzzScan: whatever passes, encoding/json reads, and reads alike; and unescaped gives the strings that it gives.
func FuzzScan(f *testing.F) {
	for _, s := range []string{`{"a":[1,2.5e3,"\u00e9\ud83d\ude00"]}`, `{"a":1,"\u0061":2}`, `"\ud800"`, `1e400`, `-0.0`, `[{"b":null}]`, "\"\xff\"", `12345678901234567890`,
		`{"":{"":{}}}`, `[" \t\n"]`, `"\\\"\/"`, `[1e-320, 0.1]`, "\"\ufffd\"", `{"K":1,"k":2,"\u212a":3}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		err := document(b)
		if err != nil {
			return
		}
		if err := sameReading(b); err != nil {
			t.Errorf("%q passes, but %v", b, err)
		}
		s := &scanner{b: b}
		if s.space() != '"' {
			return
		}
		raw, escaped, _ := s.str()
		var want string
		if json.Unmarshal(b, &want) != nil || string(unescaped(raw, escaped)) != want {
			t.Errorf("%q: %q, want %q", b, unescaped(raw, escaped), want)
		}
	})
}
