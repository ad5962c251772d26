// SPDX-License-Identifier: BSD-4-Clause

package front

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/maphash"
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
	free []*keySet
}

// space skips white space and returns the next byte, or 0 at the end.
func (s *scanner) space() byte {
	if s.i < len(s.b) {
		if c := s.b[s.i]; c > ' ' {
			return c
		}
	}
	return s.spaces()
}

func (s *scanner) spaces() byte {
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
	b, start := s.b, s.i
	for i := start; ; {
		if i+8 <= len(b) {
			m := special(binary.LittleEndian.Uint64(b[i:]))
			if m == 0 {
				i += 8
				continue
			}
			i += bits.TrailingZeros64(m) / 8
		}
		if i >= len(b) {
			return nil, false, errEnd
		}
		switch c := b[i]; {
		case c == '"':
			s.i = i + 1
			return b[start:i], escaped, nil
		case c == '\\':
			escaped, s.i = true, i
			if err = s.escape(); err != nil {
				return nil, false, err
			}
			i = s.i
		case c < 0x20:
			return nil, false, errControl
		default: // within the last bytes of the document
			i++
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
	i := s.i
	for i < len(s.b) && s.b[i]-'0' <= 9 {
		i++
	}
	n := i - s.i
	s.i = i
	return n
}

func (s *scanner) at(c byte) bool { return s.i < len(s.b) && s.b[s.i] == c }

// number consumes a number. Beyond 64 bits and a double's range readers differ: some fail, some round, some say
// infinity; and a reader may write an integer out again that another one had rounded.
func (s *scanner) number() error {
	start, whole, exponent := s.i, true, 0
	if s.at('-') {
		s.i++
	}
	if s.at('0') {
		s.i++
	} else if s.digits() == 0 {
		return s.broken()
	}
	if s.i < len(s.b) && s.b[s.i] != '.' && s.b[s.i]|0x20 != 'e' && s.i-start < 19 {
		return nil // an integer below 64 bits
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
		if exponent = s.digits(); exponent == 0 {
			return s.broken()
		}
	}
	return fits(s.b[start:s.i], whole, exponent)
}

func (s *scanner) broken() error {
	if s.i >= len(s.b) {
		return errEnd
	}
	return errSyntax
}

// fits decides by the text's length where that suffices: 18 digits are below 64 bits, and 64 characters with an exponent
// of two digits below 1e308.
func fits(text []byte, whole bool, exponent int) error {
	switch {
	case len(text) > maxNumber:
		return errNumber
	case whole && len(text) < 19, !whole && exponent < 3:
		return nil
	case whole:
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

// finish demands that nothing but white space is left.
func (s *scanner) finish() error {
	if s.space(); s.i < len(s.b) {
		return errAfter
	}
	return nil
}

// note remembers a key of the object whose keys begin at base, and finds one that stands twice. Few keys are compared one
// by one, many through a table. The keys of the objects around it lie below base.
func (s *scanner) note(key []byte, base int, many **keySet) error {
	if *many == nil {
		for _, have := range s.keys[base:] {
			if len(have) == len(key) && string(have) == string(key) {
				return errDuplicate
			}
		}
		if s.keys = append(s.keys, key); len(s.keys)-base >= fewKeys {
			*many = s.set(s.keys[base:])
		}
		return nil
	}
	if len(s.keys)-base >= maxKeys {
		return errKeys
	}
	s.keys = append(s.keys, key)
	if !(*many).add(s.keys[base:]) {
		return errDuplicate
	}
	return nil
}

// set takes a table that is free, or makes one, and puts keys into it that differ.
func (s *scanner) set(keys [][]byte) *keySet {
	var k *keySet
	if n := len(s.free); n > 0 {
		k, s.free = s.free[n-1], s.free[:n-1]
	} else {
		k = &keySet{}
	}
	k.clear(len(keys))
	for n := range keys {
		k.add(keys[:n+1])
	}
	return k
}

// keySet is a hash table of an object's keys, by their numbers.
type keySet struct {
	slots []int32 // number of a key, from 1; a power of two of them, at most half of them taken
}

// seed is drawn by chance, so nobody can write keys that all fall into one place.
var seed = maphash.MakeSeed()

func (k *keySet) clear(n int) {
	size := 4 * fewKeys
	for size < 2*n {
		size *= 2
	}
	if size = 1 << bits.Len(uint(size-1)); cap(k.slots) < size {
		k.slots = make([]int32, size)
		return
	}
	k.slots = k.slots[:size]
	clear(k.slots)
}

// add puts in the last of an object's keys; false means that it is there already.
func (k *keySet) add(keys [][]byte) bool {
	if 2*len(keys) > len(k.slots) {
		k.clear(2 * len(keys))
		for n := range keys[:len(keys)-1] {
			k.put(keys, n)
		}
	}
	return k.put(keys, len(keys)-1)
}

func (k *keySet) put(keys [][]byte, n int) bool {
	mask := uint64(len(k.slots) - 1)
	for at := maphash.Bytes(seed, keys[n]) & mask; ; at = (at + 1) & mask {
		switch have := k.slots[at]; {
		case have == 0:
			k.slots[at] = int32(n + 1)
			return true
		case string(keys[have-1]) == string(keys[n]):
			return false
		}
	}
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
	case '"':
		_, _, err := s.str()
		return err
	case '{':
		return s.skipObject(depth)
	case '[':
		return s.skipArray(depth)
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		return s.number()
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	}
	return s.broken()
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
	var many *keySet
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
	if s.keys = s.keys[:base]; many != nil {
		s.free = append(s.free, many)
	}
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
