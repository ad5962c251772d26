// SPDX-License-Identifier: BSD-4-Clause

package front

import (
	_ "embed" // the table
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"sort"
	"strings"
	"sync"
)

//go:embed rules.json
var rulesJSON []byte

// Endpoint is one route of the table.
type Endpoint struct {
	Protocol string   `json:"protocol"` // "anthropic", "openai" or "both"
	Queries  []string `json:"queries"`  // exact query strings that may follow the path
	Body     string   `json:"body"`     // the body's shape; "" when no body belongs here
	Free     bool     `json:"free"`     // no tokens are used
	Answer   string   `json:"answer"`   // what the front answers by itself, "" when the broker does

	rule *rule
}

// table is rules.json as it is written.
type table struct {
	Endpoints map[string]*Endpoint       `json:"endpoints"`
	Betas     map[string][]string        `json:"betas"` // names without their dates, by the grant that they need
	Grants    map[string]string          `json:"grants"`
	Shapes    map[string]json.RawMessage `json:"shapes"`
}

// shape is an object as the table writes it: fields, or by a field's value one of several cases.
type shape struct {
	What   string                     `json:"what"`
	Fields map[string]string          `json:"fields"`
	Needs  []string                   `json:"needs"` // fields that must be there, and not null
	By     string                     `json:"by"`
	Absent string                     `json:"absent"` // the case of an object without the field of By
	Cases  map[string]json.RawMessage `json:"cases"`
}

// kindOf says what a rule does with a value.
type kindOf int

const (
	kindAny       kindOf = iota // form alone
	kindText                    // a string of any length
	kindWord                    // a string of at most maxWord bytes
	kindNumber                  // a number
	kindBool                    // true or false
	kindStream                  // true or false, and noted
	kindEmpty                   // null or an object without members
	kindModel                   // a model's name
	kindOneOf                   // one of the words
	kindInline                  // data in Base64, with or without the head of a data: URL
	kindDataURL                 // a data: URL; another URL needs a grant
	kindGrant                   // whatever it is, it needs a grant
	kindAnyGrant                // it needs some grant
	kindGrantTrue               // true needs a grant
	kindList                    // an array
	kindObject                  // an object with listed fields
	kindBy                      // an object whose fields depend on one of them
	kindEither                  // a scalar by the first rule, anything else by the second
)

// rule is a compiled rule. Null passes wherever a value is not demanded by the walk itself.
type rule struct {
	kind   kindOf
	what   string   // of an object, for people
	grant  string   // of kindGrant, kindGrantTrue
	words  []string // of kindOneOf
	item   *rule    // of kindList; of kindEither what is no scalar
	scalar *rule    // of kindEither
	fields map[string]int
	names  []string // of the fields, by their index
	rules  []*rule  // of kindObject, by the index in fields
	needs  uint64   // which of them must be there, by bit
	by     string
	absent *rule
	cases  map[string]*rule
}

var simple = map[string]kindOf{
	"any": kindAny, "text": kindText, "word": kindWord, "number": kindNumber, "bool": kindBool, "stream": kindStream, "empty": kindEmpty,
	"model": kindModel, "inline": kindInline, "data_url": kindDataURL, "any grant": kindAnyGrant,
}

// compiler turns the table's words into rules. Shapes may name themselves.
type compiler struct {
	table table
	made  map[string]*rule
	err   error
}

func (c *compiler) fail(format string, args ...any) *rule {
	if c.err == nil {
		c.err = fmt.Errorf("rules.json: "+format, args...)
	}
	return &rule{kind: kindAny}
}

// named compiles one word of the table.
func (c *compiler) named(word string) *rule {
	if first, second, found := strings.Cut(word, "/"); found {
		return &rule{kind: kindEither, scalar: c.named(first), item: c.named(second)}
	}
	if kind, ok := simple[word]; ok {
		return &rule{kind: kind}
	}
	for prefix, make := range map[string]func(string) *rule{
		"list:":              func(s string) *rule { return &rule{kind: kindList, item: c.named(s)} },
		"one of ":            func(s string) *rule { return &rule{kind: kindOneOf, words: strings.Split(s, "|")} },
		"grant:":             func(s string) *rule { return c.granted(kindGrant, s) },
		"unless true grant:": func(s string) *rule { return c.granted(kindGrantTrue, s) },
	} {
		if rest, ok := strings.CutPrefix(word, prefix); ok {
			return make(rest)
		}
	}
	return c.shape(word)
}

func (c *compiler) granted(kind kindOf, grant string) *rule {
	if c.table.Grants[grant] == "" {
		return c.fail("grant %q is not described", grant)
	}
	return &rule{kind: kind, grant: grant}
}

func (c *compiler) shape(name string) *rule {
	if r := c.made[name]; r != nil {
		return r
	}
	raw, ok := c.table.Shapes[name]
	if !ok {
		return c.fail("nothing is called %q", name)
	}
	r := &rule{}
	c.made[name] = r
	c.fill(r, raw, "")
	return r
}

// fill compiles an object. by is the field that chose it, which is a word in each of its cases.
func (c *compiler) fill(r *rule, raw json.RawMessage, by string) {
	var s shape
	if err := json.Unmarshal(raw, &s); err != nil {
		c.fail("%v", err)
		return
	}
	r.kind, r.what, r.by = kindObject, s.What, s.By
	if s.By != "" {
		r.kind, r.cases = kindBy, map[string]*rule{}
		for word, one := range s.Cases {
			r.cases[word] = c.chosen(one, s)
		}
		if r.absent = r.cases[s.Absent]; s.Absent != "" && r.absent == nil {
			c.fail("%q is no case", s.Absent)
		}
		return
	}
	if by != "" {
		s.Fields[by] = "word"
	}
	r.fields = map[string]int{}
	r.names = sorted(s.Fields)
	for _, name := range r.names {
		r.fields[name] = len(r.rules)
		r.rules = append(r.rules, c.named(s.Fields[name]))
	}
	if len(r.rules) > 64 {
		c.fail("more than 64 fields in one object")
	}
	for _, name := range s.Needs {
		if _, ok := s.Fields[name]; !ok {
			c.fail("%q is needed and not listed", name)
		}
		r.needs |= 1 << r.fields[name]
	}
}

func (c *compiler) chosen(raw json.RawMessage, of shape) *rule {
	var word string
	if json.Unmarshal(raw, &word) == nil {
		return c.named(word)
	}
	r := &rule{}
	c.fill(r, raw, of.By)
	r.what = of.What
	return r
}

func sorted[V any](of map[string]V) []string {
	out := make([]string, 0, len(of))
	for name := range of {
		out = append(out, name)
	}
	sort.Strings(out)
	return out
}

func compile(raw []byte) (*table, error) {
	c := &compiler{made: map[string]*rule{}}
	if err := json.Unmarshal(raw, &c.table); err != nil {
		return nil, fmt.Errorf("rules.json: %w", err)
	}
	for _, e := range c.table.Endpoints {
		if e.Body != "" {
			e.rule = c.named(e.Body)
		}
	}
	for grant := range c.table.Betas {
		if grant != "" {
			c.granted(kindGrant, grant)
		}
	}
	return &c.table, c.err
}

var compiled = sync.OnceValues(func() (*table, error) { return compile(rulesJSON) })

// Endpoints are the routes of the table, by method and path: "POST /v1/messages".
func Endpoints() (map[string]*Endpoint, error) {
	t, err := compiled()
	if err != nil {
		return nil, err
	}
	return t.Endpoints, nil
}

// Betas keeps of a list of beta names, as a header has it, those of the table whose grant is given. A name that is not
// known is left out: what it would turn on is not known either.
func (g *Grants) Betas(header string) string {
	t, err := compiled()
	if err != nil { // then there is no front
		return ""
	}
	var kept []string
	for _, name := range strings.Split(header, ",") {
		name = strings.TrimSpace(name)
		for grant, names := range t.Betas {
			if (grant == "" || g.has(grant)) && slices.Contains(names, withoutDate(name)) {
				kept = append(kept, name)
			}
		}
	}
	return strings.Join(kept, ",")
}

var betaDate = regexp.MustCompile(`-(\d{8}|\d{4}-\d{2}-\d{2})$|=v\d+$`)

func withoutDate(beta string) string { return betaDate.ReplaceAllString(beta, "") }
