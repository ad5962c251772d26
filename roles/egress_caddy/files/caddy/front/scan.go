// SPDX-License-Identifier: BSD-4-Clause

package front

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
	"strconv"
	"unicode/utf8"
)

// Bounds of a document. A body's size is bounded before it comes here.
const (
	maxDepth  = 100   // Go's own reader stops at 10000, Python's at about 1000
	maxKeys   = 10000 // of one object
	maxKey    = 4096  // bytes of one key as it is written
	maxNumber = 64    // bytes of one number as it is written

	fewKeys = 12 // are compared one by one
)

// errNotJSON and the others say why a document is refused; they hold nothing of it.
var (
	errSyntax    = errors.New("not valid JSON")
	errEnd       = errors.New("the JSON document breaks off")
	errAfter     = errors.New("there is something after the JSON document")
	errUTF8      = errors.New("not valid UTF-8")
	errControl   = errors.New("a control character stands in a string")
	errEscape    = errors.New("an escape that JSON does not have")
	errSurrogate = errors.New("half of a surrogate pair, which stands for no character")
	errDepth     = errors.New("nested more than 100 deep")
	errKeys      = errors.New("more than 10000 keys in one object")
	errKeyLength = errors.New("a key of more than 4096 bytes")
	errNumber    = errors.New("a number that not every reader can hold: beyond 64 bits, a double's range, or 64 characters")
	errDuplicate = errors.New("a key that stands twice in one object")
)

// scanner reads one JSON document (RFC 8259) in memory. It builds nothing: a value is a range of the document.
type scanner struct {
	b    []byte
	i    int
	keys [][]byte // of the objects that skip is in
}

// space skips white space and returns the next byte, or 0 at the end.
func (s *scanner) space() byte {
	for ; s.i < len(s.b); s.i++ {
		if c := s.b[s.i]; c > ' ' || c != ' ' && c != '\n' && c != '\r' && c != '\t' {
			return c
		}
	}
	return 0
}

// expect consumes one structural byte.
func (s *scanner) expect(c byte) error {
	switch s.space() {
	case c:
		s.i++
		return nil
	case 0:
		return errEnd
	}
	return errSyntax
}

const (
	every = 0x0101010101010101
	highs = 0x8080808080808080
)

// special marks the bytes of a word that end a run of plain ones: quote, backslash and control characters. Only the
// lowest mark is exact, which is the one that is used. (Hacker's Delight, 2nd ed., section 6-1.)
func special(w uint64) uint64 {
	quote, back := w^(every*'"'), w^(every*'\\')
	return ((quote-every)&^quote | (back-every)&^back | (w-every*0x20)&^w) & highs
}

// str consumes a string and returns what stands between its quotes, as it is written, and whether it has escapes.
func (s *scanner) str() (raw []byte, escaped bool, err error) {
	if err = s.expect('"'); err != nil {
		return nil, false, err
	}
	start := s.i
	for {
		for s.i+8 <= len(s.b) {
			if m := special(binary.LittleEndian.Uint64(s.b[s.i:])); m != 0 {
				s.i += bits.TrailingZeros64(m) / 8
				break
			}
			s.i += 8
		}
		if s.i >= len(s.b) {
			return nil, false, errEnd
		}
		switch c := s.b[s.i]; {
		case c == '"':
			s.i++
			return s.b[start : s.i-1], escaped, nil
		case c == '\\':
			escaped = true
			if err = s.escape(); err != nil {
				return nil, false, err
			}
		case c < 0x20:
			return nil, false, errControl
		default:
			s.i++
		}
	}
}

// escape consumes a backslash and what belongs to it. A surrogate must be one of a pair: readers make different things
// of a lone one (U+FFFD, an error, a string that cannot be encoded).
func (s *scanner) escape() error {
	if s.i+1 >= len(s.b) {
		return errEnd
	}
	switch s.b[s.i+1] {
	case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
		s.i += 2
		return nil
	case 'u':
	default:
		return errEscape
	}
	r, ok := hex4(s.b, s.i+2)
	if !ok {
		return errEscape
	}
	s.i += 6
	switch {
	case r < 0xd800 || r > 0xdfff:
		return nil
	case r > 0xdbff || s.i+1 >= len(s.b) || s.b[s.i] != '\\' || s.b[s.i+1] != 'u':
		return errSurrogate
	}
	if low, ok := hex4(s.b, s.i+2); !ok || low < 0xdc00 || low > 0xdfff {
		return errSurrogate
	}
	s.i += 6
	return nil
}

func hex4(b []byte, at int) (rune, bool) {
	if at+4 > len(b) {
		return 0, false
	}
	var r rune
	for _, c := range b[at : at+4] {
		switch {
		case c >= '0' && c <= '9':
			c -= '0'
		case c >= 'a' && c <= 'f':
			c -= 'a' - 10
		case c >= 'A' && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// unescaped returns a string's value. What comes from str is valid, so the standard reader cannot fail on it.
func unescaped(raw []byte, escaped bool) []byte {
	if !escaped {
		return raw
	}
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); {
		if raw[i] != '\\' {
			next := bytes.IndexByte(raw[i:], '\\')
			if next < 0 {
				next = len(raw) - i
			}
			out, i = append(out, raw[i:i+next]...), i+next
			continue
		}
		var r rune
		r, i = unescape(raw, i)
		out = utf8.AppendRune(out, r)
	}
	return out
}

// unescape reads the escape at i of a string that was scanned, and says where the next character stands.
func unescape(raw []byte, i int) (rune, int) {
	switch c := raw[i+1]; c {
	case 'b':
		return '\b', i + 2
	case 'f':
		return '\f', i + 2
	case 'n':
		return '\n', i + 2
	case 'r':
		return '\r', i + 2
	case 't':
		return '\t', i + 2
	case 'u':
	default:
		return rune(c), i + 2
	}
	r, _ := hex4(raw, i+2)
	if r < 0xd800 || r > 0xdfff {
		return r, i + 6
	}
	low, _ := hex4(raw, i+8)
	return (r-0xd800)<<10 | (low - 0xdc00) + 0x10000, i + 12
}

func (s *scanner) digits() int {
	start := s.i
	for s.i < len(s.b) && s.b[s.i] >= '0' && s.b[s.i] <= '9' {
		s.i++
	}
	return s.i - start
}

func (s *scanner) at(c byte) bool { return s.i < len(s.b) && s.b[s.i] == c }

// number consumes a number. Beyond 64 bits and a double's range readers differ: some fail, some round, some say
// infinity; and a reader may write an integer out again that another one had rounded.
func (s *scanner) number() error {
	start, whole := s.i, true
	if s.at('-') {
		s.i++
	}
	if s.at('0') {
		s.i++
	} else if s.digits() == 0 {
		return s.broken()
	}
	if s.at('.') {
		s.i, whole = s.i+1, false
		if s.digits() == 0 {
			return s.broken()
		}
	}
	if s.at('e') || s.at('E') {
		s.i, whole = s.i+1, false
		if s.at('+') || s.at('-') {
			s.i++
		}
		if s.digits() == 0 {
			return s.broken()
		}
	}
	return fits(s.b[start:s.i], whole)
}

func (s *scanner) broken() error {
	if s.i >= len(s.b) {
		return errEnd
	}
	return errSyntax
}

func fits(text []byte, whole bool) error {
	if len(text) > maxNumber {
		return errNumber
	}
	if whole {
		if len(text) < 19 {
			return nil
		}
		if _, err := strconv.ParseInt(string(text), 10, 64); err == nil {
			return nil
		}
		if _, err := strconv.ParseUint(string(text), 10, 64); err != nil {
			return errNumber
		}
		return nil
	}
	if f, err := strconv.ParseFloat(string(text), 64); err != nil || math.IsInf(f, 0) {
		return errNumber
	}
	return nil
}

func (s *scanner) literal(word string) error {
	if len(s.b)-s.i < len(word) {
		return errEnd
	}
	if string(s.b[s.i:s.i+len(word)]) != word {
		return errSyntax
	}
	s.i += len(word)
	return nil
}

// scalar consumes a value that is neither object nor array.
func (s *scanner) scalar() error {
	switch c := s.space(); {
	case c == '"':
		_, _, err := s.str()
		return err
	case c == '-' || c >= '0' && c <= '9':
		return s.number()
	case c == 't':
		return s.literal("true")
	case c == 'f':
		return s.literal("false")
	case c == 'n':
		return s.literal("null")
	case c == 0 && s.i >= len(s.b):
		return errEnd
	}
	return errSyntax
}

// finish demands that nothing but white space is left.
func (s *scanner) finish() error {
	if s.space(); s.i < len(s.b) {
		return errAfter
	}
	return nil
}

// note remembers a key of the object whose keys begin at base, and finds one that stands twice. Few keys are compared one
// by one, many through a map. The keys of the objects around it lie below base.
func (s *scanner) note(key []byte, base int, many *map[string]struct{}) error {
	if *many == nil {
		for _, have := range s.keys[base:] {
			if len(have) == len(key) && string(have) == string(key) {
				return errDuplicate
			}
		}
		if s.keys = append(s.keys, key); len(s.keys)-base < fewKeys {
			return nil
		}
		*many = make(map[string]struct{}, 4*fewKeys)
		for _, have := range s.keys[base:] {
			(*many)[string(have)] = struct{}{}
		}
		return nil
	}
	if _, twice := (*many)[string(key)]; twice {
		return errDuplicate
	}
	if len(*many) >= maxKeys {
		return errKeys
	}
	(*many)[string(key)] = struct{}{}
	return nil
}

// key consumes an object's key and the colon behind it.
func (s *scanner) key() ([]byte, error) {
	raw, escaped, err := s.str()
	if err != nil {
		return nil, err
	}
	if len(raw) > maxKey {
		return nil, errKeyLength
	}
	return unescaped(raw, escaped), s.expect(':')
}

// more consumes what stands between two members, or the end of them.
func (s *scanner) more(end byte) (bool, error) {
	switch s.space() {
	case ',':
		s.i++
		return true, nil
	case end:
		s.i++
		return false, nil
	case 0:
		if s.i >= len(s.b) {
			return false, errEnd
		}
	}
	return false, errSyntax
}

// skip consumes any value and checks its form alone. depth is how many objects and arrays it stands in.
func (s *scanner) skip(depth int) error {
	switch s.space() {
	case '{':
		return s.skipObject(depth)
	case '[':
		return s.skipArray(depth)
	}
	return s.scalar()
}

func (s *scanner) skipObject(depth int) error {
	if depth >= maxDepth {
		return errDepth
	}
	s.i++
	if s.space() == '}' {
		s.i++
		return nil
	}
	base := len(s.keys)
	var many map[string]struct{}
	for again := true; again; {
		key, err := s.key()
		if err == nil {
			err = s.note(key, base, &many)
		}
		if err == nil {
			err = s.skip(depth + 1)
		}
		if err == nil {
			again, err = s.more('}')
		}
		if err != nil {
			return err
		}
	}
	s.keys = s.keys[:base]
	return nil
}

func (s *scanner) skipArray(depth int) error {
	if depth >= maxDepth {
		return errDepth
	}
	s.i++
	if s.space() == ']' {
		s.i++
		return nil
	}
	for again := true; again; {
		err := s.skip(depth + 1)
		if err == nil {
			again, err = s.more(']')
		}
		if err != nil {
			return err
		}
	}
	return nil
}
