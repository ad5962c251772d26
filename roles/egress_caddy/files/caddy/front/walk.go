// SPDX-License-Identifier: BSD-4-Clause

package front

import (
	"bytes"
	"math/bits"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Reasons of a refused body.
const (
	DeniedJSON      = "denied-json"      // not one JSON document that every reader reads alike
	DeniedShape     = "denied-shape"     // a value of another kind than the protocol's
	DeniedParameter = "denied-parameter" // a field that is not on the list
	DeniedModel     = "denied-model"     // a model that is not declared
	DeniedHosted    = "denied-hosted"    // something that the provider would do or fetch, and that is not granted
)

const (
	keyModels = "llm.models"
	keyHosted = "llm.hosted_tools"

	maxWord  = 512 // bytes of a name, an id, a choice
	maxModel = 200
	maxShown = 80 // bytes of a body that a message quotes
)

// Grants is what the plan grants beyond a model's own words.
type Grants struct {
	Models []string // exact names, or with * for any run of characters; none: every model
	Hosted []string // words of the table's grants, or types of tools and contents
}

// Facts are what a request says about itself.
type Facts struct {
	Model  string
	Stream bool
}

// Denial is why a body is refused. Path and Found come from the body and are bounded, not cleaned.
type Denial struct {
	Reason string
	Path   string // messages[3].content[0].source.type
	Text   string // what is wrong, and what would allow it
	Key    string // the manifest's key that would allow it, "" when none would
}

func (d *Denial) Error() string {
	if d.Path == "" {
		return d.Text
	}
	return d.Path + ": " + d.Text
}

// at puts a step before the path, as the walk comes back.
func (d *Denial) at(step string) *Denial {
	if len(d.Path) < 4*maxShown {
		if d.Path != "" && d.Path[0] != '[' {
			step += "."
		}
		d.Path = step + d.Path
	}
	return d
}

func malformed(err error) *Denial {
	return &Denial{Reason: DeniedJSON, Text: err.Error()}
}

// Check walks a body. It returns what the request says about itself, or why it may not pass.
func (e *Endpoint) Check(body []byte, grants *Grants) (Facts, *Denial) {
	if !utf8.Valid(body) {
		return Facts{}, malformed(errUTF8)
	}
	w := &walk{scanner: scanner{b: body}, grants: grants}
	if w.space() != '{' {
		return Facts{}, w.kindDenied("an object")
	}
	if no := w.value(e.rule, 0); no != nil {
		return w.facts, no
	}
	if err := w.finish(); err != nil {
		return w.facts, malformed(err)
	}
	return w.facts, nil
}

// walk is one body on its way through the table.
type walk struct {
	scanner
	grants *Grants
	facts  Facts
	ahead  int // bytes that were read to find what decides, before they were walked
}

// kindDenied refuses the value at hand for its kind; a value that is not JSON is refused for that.
func (w *walk) kindDenied(want string) *Denial {
	if err := w.skip(0); err != nil {
		return malformed(err)
	}
	return &Denial{Reason: DeniedShape, Text: "here belongs " + want}
}

// value consumes one value by a rule. depth is how many objects and arrays it stands in.
func (w *walk) value(r *rule, depth int) *Denial {
	c := w.space()
	if c == 'n' {
		return w.formed(w.literal("null"))
	}
	switch r.kind {
	case kindAny:
		return w.formed(w.skip(depth))
	case kindEither:
		if c == '{' || c == '[' {
			return w.value(r.item, depth)
		}
		return w.value(r.scalar, depth)
	case kindList:
		return w.list(r, c, depth)
	case kindObject, kindBy:
		return w.object(r, c, depth)
	case kindGrant, kindAnyGrant:
		return w.grant(r, depth)
	case kindEmpty:
		return w.empty(c)
	case kindNumber:
		if c != '-' && (c < '0' || c > '9') {
			return w.kindDenied("a number")
		}
		return w.formed(w.number())
	case kindBool, kindStream, kindGrantTrue:
		return w.truth(r, c)
	}
	if c != '"' {
		return w.kindDenied("a string")
	}
	return w.text(r)
}

func (w *walk) formed(err error) *Denial {
	if err != nil {
		return malformed(err)
	}
	return nil
}

func (w *walk) truth(r *rule, c byte) *Denial {
	switch {
	case c == 't' && r.kind == kindGrantTrue && !w.grants.has(r.grant):
		return hosted("true", r.grant)
	case c == 't':
		w.facts.Stream = w.facts.Stream || r.kind == kindStream
		return w.formed(w.literal("true"))
	case c == 'f':
		return w.formed(w.literal("false"))
	}
	return w.kindDenied("true or false")
}

func (w *walk) empty(c byte) *Denial {
	start := w.i
	if c == '{' {
		w.i++
		if err := w.expect('}'); err == nil {
			return nil
		}
		w.i = start
	}
	if err := w.skip(0); err != nil {
		return malformed(err)
	}
	return &Denial{Reason: DeniedParameter, Text: "must be empty: the broker acts on what stands here"}
}

// grant lets a value pass, whatever it is, when the plan grants its word.
func (w *walk) grant(r *rule, depth int) *Denial {
	start := w.i
	if err := w.skip(depth); err != nil {
		return malformed(err)
	}
	switch {
	case r.kind == kindAnyGrant && len(w.grants.Hosted) > 0, w.grants.has(r.grant):
		return nil
	case string(w.b[start:w.i]) == "[]", string(w.b[start:w.i]) == "{}", string(w.b[start:w.i]) == `""`:
		return nil // nothing is asked for
	case r.kind == kindAnyGrant:
		return &Denial{Reason: DeniedHosted, Key: keyHosted, Text: "the provider's own tools are not granted; " + keyHosted + " grants them by their types"}
	}
	return hosted("", r.grant)
}

func hosted(found, grant string) *Denial {
	if found != "" {
		found = strconv.QuoteToASCII(found) + " "
	}
	return &Denial{Reason: DeniedHosted, Key: keyHosted, Text: found + "is not granted; " + strconv.QuoteToASCII(grant) + " in " + keyHosted + " would grant it"}
}

func (w *walk) list(r *rule, c byte, depth int) *Denial {
	if c != '[' {
		return w.kindDenied("a list")
	}
	if depth >= maxDepth {
		return malformed(errDepth)
	}
	w.i++
	if w.space() == ']' {
		w.i++
		return nil
	}
	for n := 0; ; n++ {
		if w.space() == 'n' {
			return w.kindDenied("something else than null").at("[" + strconv.Itoa(n) + "]")
		}
		if no := w.value(r.item, depth+1); no != nil {
			return no.at("[" + strconv.Itoa(n) + "]")
		}
		again, err := w.more(']')
		if err != nil {
			return malformed(err)
		}
		if !again {
			return nil
		}
	}
}

func (w *walk) object(r *rule, c byte, depth int) *Denial {
	if c != '{' {
		return w.kindDenied("an object")
	}
	if depth >= maxDepth {
		return malformed(errDepth)
	}
	if r.kind == kindBy {
		one, no := w.choose(r, depth)
		if no != nil {
			return no
		}
		if one.kind != kindObject { // a whole object that needs a grant, or none
			return w.value(one, depth)
		}
		r = one
	}
	w.i++
	if w.space() == '}' {
		w.i++
		return missing(r, 0)
	}
	return w.members(r, depth+1)
}

// missing demands the fields without which the broker would answer with a trace of its own.
func missing(r *rule, seen uint64) *Denial {
	if lacks := r.needs &^ seen; lacks != 0 {
		for name, n := range r.fields {
			if n == bits.TrailingZeros64(lacks) {
				return (&Denial{Reason: DeniedShape, Text: "the field is missing, or null"}).at(name)
			}
		}
	}
	return nil
}

func (w *walk) members(r *rule, depth int) *Denial {
	for seen, null := uint64(0), uint64(0); ; {
		name, err := w.key()
		if err != nil {
			return malformed(err)
		}
		n, known := r.field(name)
		switch {
		case !known:
			return w.unknown(r, name, depth)
		case (seen|null)>>n&1 == 1:
			return malformed(errDuplicate).at(string(name))
		}
		if w.space() == 'n' {
			null |= 1 << n
		} else {
			seen |= 1 << n
		}
		if no := w.value(r.rules[n], depth); no != nil {
			return no.at(string(name))
		}
		again, err := w.more('}')
		if err != nil {
			return malformed(err)
		}
		if !again {
			return missing(r, seen)
		}
	}
}

// field is the number of a listed field. A few are compared one by one, which is faster than a map.
func (r *rule) field(name []byte) (n int, known bool) {
	if len(r.names) > fewKeys {
		n, known = r.fields[string(name)]
		return n, known
	}
	for n, have := range r.names {
		if len(have) == len(name) && have == string(name) {
			return n, true
		}
	}
	return 0, false
}

// unknown refuses a field that is not listed. A spelling that some reader takes for a listed one is named as such.
func (w *walk) unknown(r *rule, name []byte, depth int) *Denial {
	if err := w.skip(depth); err != nil {
		return malformed(err)
	}
	text := "is not a field that may stand in " + r.what
	for have := range r.fields {
		if bytes.EqualFold(name, []byte(have)) {
			text = "is " + have + " for some readers and not for others"
		}
	}
	return (&Denial{Reason: DeniedParameter, Text: text}).at(shown(name))
}

// choose looks ahead for the field that decides, and leaves the scanner where it was.
func (w *walk) choose(r *rule, depth int) (*rule, *Denial) {
	start := w.i
	raw, found, no := w.lookup(r.by, depth+1)
	w.ahead += w.i - start
	w.i = start
	switch {
	case w.ahead > 4*len(w.b)+maxWord:
		return nil, (&Denial{Reason: DeniedShape, Text: "stands behind too much; put it first"}).at(r.by)
	case no != nil:
		return nil, no
	case !found && r.absent != nil:
		return r.absent, nil
	case !found:
		return nil, (&Denial{Reason: DeniedShape, Text: "the field is missing"}).at(r.by)
	}
	if one := r.cases[string(raw)]; one != nil {
		return one, nil
	}
	if one := r.cases[undated(string(raw))]; one != nil {
		return one, nil
	}
	if w.grants.has(string(raw)) {
		return &rule{kind: kindAny}, nil
	}
	return nil, hosted(shown(raw), undated(shown(raw))).at(r.by)
}

// lookup finds a string field of the object at hand. That it stands twice is found by who reads the object.
func (w *walk) lookup(name string, depth int) (value []byte, found bool, no *Denial) {
	w.i++
	if w.space() == '}' {
		return nil, false, nil
	}
	for {
		key, err := w.key()
		if err == nil && string(key) == name {
			if w.space() != '"' {
				return nil, false, w.kindDenied("a string").at(name)
			}
			raw, escaped, err := w.str()
			if err != nil {
				return nil, false, malformed(err)
			}
			if len(raw) > maxWord {
				return nil, false, (&Denial{Reason: DeniedShape, Text: "too long"}).at(name)
			}
			return unescaped(raw, escaped), true, nil
		}
		if err == nil {
			err = w.skip(depth)
		}
		again := false
		if err == nil {
			again, err = w.more('}')
		}
		if err != nil {
			return nil, false, malformed(err).at(shown(key))
		}
		if !again {
			return nil, false, nil
		}
	}
}

// undated takes the date off a type's name: web_search_20250305, web_search_preview_2025_03_11.
func undated(word string) string {
	for _, form := range []string{"_00000000", "_0000_00_00"} {
		if cut := len(word) - len(form); cut > 0 && matches(word[cut:], form) {
			return word[:cut]
		}
	}
	return word
}

func matches(text, form string) bool {
	for i := range len(form) {
		if digit := text[i] >= '0' && text[i] <= '9'; digit != (form[i] == '0') || !digit && text[i] != form[i] {
			return false
		}
	}
	return true
}

func (g *Grants) has(word string) bool {
	for _, h := range g.Hosted {
		if h == word || h == undated(word) {
			return true
		}
	}
	return false
}

// text consumes a string by a rule for strings.
func (w *walk) text(r *rule) *Denial {
	raw, escaped, err := w.str()
	if err != nil {
		return malformed(err)
	}
	if r.kind == kindText {
		return nil
	}
	if r.kind == kindDataURL || r.kind == kindInline {
		return w.data(r, raw, escaped)
	}
	if len(raw) > maxWord {
		return &Denial{Reason: DeniedShape, Text: "too long: at most " + strconv.Itoa(maxWord) + " bytes"}
	}
	if r.kind == kindWord {
		return nil
	}
	word := string(unescaped(raw, escaped))
	switch {
	case r.kind == kindModel:
		return w.model(word)
	case r.kind == kindOneOf:
		for _, ok := range r.words {
			if word == ok {
				return nil
			}
		}
		return &Denial{Reason: DeniedShape, Text: "must be one of " + strings.Join(r.words, ", ")}
	}
	return nil
}

// data demands data that stands in the request itself. A colon behind the head of a data: URL could begin another URL
// for a reader that looks for one anywhere (some of LiteLLM's do).
func (w *walk) data(r *rule, raw []byte, escaped bool) *Denial {
	head := raw[:min(len(raw), maxWord)]
	rest, isData := bytes.CutPrefix(head, []byte("data:"))
	switch {
	case len(raw) == 0:
		return nil
	case escaped && bytes.Contains(raw, []byte(`\u`)):
		return &Denial{Reason: DeniedShape, Text: "data must not be written with \\u escapes"}
	case isData && bytes.IndexByte(rest, ',') >= 0 && bytes.IndexByte(raw[len("data:"):], ':') < 0:
		return nil
	case r.kind == kindInline && bytes.IndexByte(raw, ':') < 0:
		return nil
	case w.grants.has("remote_url"):
		return nil
	}
	return hosted("an address", "remote_url")
}

// model judges a model's name: what LiteLLM could take for several models, a pattern or two lines of a header is none.
func (w *walk) model(name string) *Denial {
	if name == "" || len(name) > maxModel || strings.IndexFunc(name, notInModel) >= 0 {
		return &Denial{Reason: DeniedModel, Text: "not a model's name: 1 to 200 letters, digits and any of . _ : / @ + ~ [ ] -"}
	}
	w.facts.Model = name
	if len(w.grants.Models) == 0 {
		return nil
	}
	for _, m := range w.grants.Models {
		if Glob(m, name) {
			return nil
		}
	}
	return &Denial{Reason: DeniedModel, Key: keyModels,
		Text: strconv.QuoteToASCII(name) + " is not one of the session's models: " + shown([]byte(strings.Join(w.grants.Models, ", "))) + "; " + keyModels + " declares them"}
}

func notInModel(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("._:/@+~[]-", r)
}

// Glob tells whether a name fits a pattern in which * stands for any run of characters.
func Glob(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == name
	}
	first, last := parts[0], parts[len(parts)-1]
	if len(name) < len(first)+len(last) || !strings.HasPrefix(name, first) || !strings.HasSuffix(name, last) {
		return false
	}
	name = name[len(first) : len(name)-len(last)]
	for _, part := range parts[1 : len(parts)-1] {
		at := strings.Index(name, part)
		if at < 0 {
			return false
		}
		name = name[at+len(part):]
	}
	return true
}

// shown bounds what is quoted from a body.
func shown(b []byte) string {
	if len(b) > maxShown {
		return string(bytes.ToValidUTF8(b[:maxShown], nil)) + "…"
	}
	return string(b)
}
