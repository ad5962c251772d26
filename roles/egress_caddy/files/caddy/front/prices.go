// SPDX-License-Identifier: BSD-4-Clause

package front

import (
	_ "embed"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
)

// USD is money in billionths of a dollar: the cheapest token costs some, so that sums lose nothing.
type USD int64

// Dollars are USD of a number of dollars; none below zero, none that sums could overflow with.
func Dollars(n float64) USD { return USD(min(max(n, 0), 1e8)*1e9 + 0.5) }

// MarshalJSON writes dollars.
func (u USD) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, float64(u)/1e9, 'f', -1, 64), nil
}

// UnmarshalJSON reads dollars.
func (u *USD) UnmarshalJSON(raw []byte) error {
	n, err := strconv.ParseFloat(string(raw), 64)
	*u = Dollars(n)
	return err
}

// String is for messages.
func (u USD) String() string { return "$" + strconv.FormatFloat(float64(u)/1e9, 'f', 4, 64) }

// Price is what a model costs, in USD per million tokens. Beyond Over tokens of input the other prices hold.
type Price struct {
	In       float64 `json:"in"`
	Out      float64 `json:"out"`
	Read     float64 `json:"read"`
	Write    float64 `json:"write"`
	Hour     float64 `json:"write_1h"`
	Over     int64   `json:"over"`
	InOver   float64 `json:"in_over"`
	OutOver  float64 `json:"out_over"`
	ReadOver float64 `json:"read_over"`
	WritOver float64 `json:"write_over"`
	HourOver float64 `json:"write_1h_over"`
}

//go:embed prices.json
var pricesJSON []byte

var (
	prices = readPrices(pricesJSON)
	dated  = regexp.MustCompile(`-20\d\d-?\d\d-?\d\d$`)
)

func readPrices(raw []byte) map[string]map[string]Price {
	var list struct {
		Prices map[string]map[string]Price `json:"prices"`
	}
	if err := json.Unmarshal(raw, &list); err != nil {
		panic("front: prices.json: " + err.Error()) // built in, and tested
	}
	return list.Prices
}

// PriceOf finds a model of a provider (LiteLLM's word): by its name, which may begin with the provider's, else by its
// name without the date. false: nobody knows what it costs.
func PriceOf(provider, model string) (Price, bool) {
	known := prices[provider]
	name := strings.TrimPrefix(model, provider+"/")
	for _, n := range []string{name, dated.ReplaceAllString(name, ""), strings.TrimSuffix(name, "-latest")} {
		if p, ok := known[n]; ok {
			return p, true
		}
	}
	return Price{}, false
}

// Cost is what a request cost by the list. A price that the list does not have is the dearer one of those it has.
func (p Price) Cost(u Usage) USD {
	in, out, read, write, hour := p.In, p.Out, p.Read, p.Write, p.Hour
	if p.Over > 0 && u.Input+u.Cached+u.Written > p.Over {
		in, out, read, write, hour = or(p.InOver, in), or(p.OutOver, out), or(p.ReadOver, read), or(p.WritOver, write), or(p.HourOver, hour)
	}
	read, write = or(read, in), or(write, in)
	long := min(u.Hour, u.Written)
	sum := float64(u.Input)*in + float64(u.Cached)*read + float64(u.Written-long)*write + float64(long)*or(hour, write) + float64(u.Output)*out
	return Dollars(sum / 1e6)
}

func or(price, other float64) float64 {
	if price > 0 {
		return price
	}
	return other
}

// DearTier names what a request asks for that costs more than the list: `service_tier`, `speed` and `inference_geo`,
// unless they say what holds anyway.
func DearTier(body []byte) string {
	for _, field := range []string{"service_tier", "speed", "inference_geo"} {
		switch value := strings.Trim(string(member(body, field)), "\" \t\r\n"); value {
		case "", "null", "auto", "default", "standard", "standard_only", "flex", "normal", "global":
		default:
			return field
		}
	}
	return ""
}
