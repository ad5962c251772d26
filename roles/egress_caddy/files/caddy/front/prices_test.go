// SPDX-License-Identifier: BSD-4-Clause

package front

import (
	"encoding/json"
	"testing"
	"time"
)

func TestPriceOf(t *testing.T) {
	sonnet, ok := PriceOf("anthropic", "claude-sonnet-4-5")
	if !ok || sonnet.In <= 0 || sonnet.Out <= sonnet.In || sonnet.Read >= sonnet.In {
		t.Fatalf("%+v %v", sonnet, ok)
	}
	for _, name := range []string{"anthropic/claude-sonnet-4-5", "claude-sonnet-4-5-20250929", "claude-sonnet-4-5-2099-01-31", "claude-sonnet-4-5-latest"} {
		if p, ok := PriceOf("anthropic", name); !ok || p.In != sonnet.In {
			t.Errorf("%s: %+v %v", name, p, ok)
		}
	}
	for _, one := range [][2]string{{"anthropic", "gpt-5"}, {"openai", "claude-sonnet-4-5"}, {"openai", ""}, {"", "gpt-5"}, {"nobody", "gpt-5"}, {"openai", "gpt-5-but-other"}} {
		if p, ok := PriceOf(one[0], one[1]); ok {
			t.Errorf("%v has a price: %+v", one, p)
		}
	}
}

// TestEveryPriceIsOne: a model that costs nothing would be a hole in a limit.
func TestEveryPriceIsOne(t *testing.T) {
	for provider, models := range prices {
		for name, p := range models {
			if p.In < 0 || p.Out < 0 || p.In+p.Out == 0 || p.Over < 0 || p.In > 1000 || p.Out > 5000 {
				t.Errorf("%s %s: %+v", provider, name, p)
			}
		}
	}
}

func TestCost(t *testing.T) {
	p := Price{In: 3, Out: 15, Read: 0.3, Write: 3.75, Hour: 6, Over: 1000, InOver: 6, OutOver: 22.5}
	for want, u := range map[USD]Usage{
		3000:                                {Input: 1},
		300:                                 {Cached: 1},
		15000:                               {Output: 1},
		3750:                                {Written: 1},
		6000:                                {Written: 1, Hour: 1},
		3750 + 6000:                         {Written: 2, Hour: 1},
		1001*6000 + 22500:                   {Input: 1001, Output: 1},
		1000*6000 + 300 + 2*3750 + 22500*10: {Input: 1000, Cached: 1, Written: 2, Output: 10},
	} {
		if got := p.Cost(u); got != want {
			t.Errorf("%+v costs %d, want %d", u, got, want)
		}
	}
	if got := p.Cost(Usage{Written: 1, Hour: 7}); got != 6000 { // never more for an hour than was written
		t.Errorf("%d", got)
	}
	if got := (Price{In: 2, Out: 4}).Cost(Usage{Cached: 1, Written: 1}); got != 4000 {
		t.Errorf("without prices of a cache: %d", got)
	}
}

func TestDollarsAreKept(t *testing.T) {
	raw, err := json.Marshal(Spent{Cost: 1_234_567})
	var back Spent
	if err == nil {
		err = json.Unmarshal(raw, &back)
	}
	if err != nil || back.Cost != 1_234_567 {
		t.Errorf("%s %+v %v", raw, back, err)
	}
	var old Spent // of a session that was opened before costs were counted
	if err := json.Unmarshal([]byte(`{"requests":1,"input_tokens":2}`), &old); err != nil || old.Input != 2 {
		t.Errorf("%+v %v", old, err)
	}
}

func TestLimitOfMoney(t *testing.T) {
	a, now := &Account{}, time.Unix(1_000_000, 0)
	l := Limits{Cost: Dollars(0.01)}
	if a.Enter(l, now) != nil {
		t.Fatal("refused")
	}
	a.Leave(Usage{Input: 1}, Dollars(0.009), true, now)
	if a.Enter(l, now) != nil {
		t.Fatal("refused below")
	}
	a.Leave(Usage{Input: 1}, Dollars(0.001), true, now)
	no := a.Enter(l, now)
	if no == nil || no.Key != "llm.limits.usd_per_session" || no.Retry != 0 || no.Text != "$0.0100 of the session's $0.0100 are spent, nothing is left, and it does not come back" {
		t.Errorf("%+v", no)
	}
}

func TestUnpricedIsCounted(t *testing.T) {
	a, now := &Account{}, time.Unix(1_000_000, 0)
	a.Enter(Limits{}, now)
	a.Enter(Limits{}, now)
	a.Leave(Usage{}, 0, false, now)
	if s := a.Leave(Usage{Input: 1}, 0, false, now); s.Unpriced != 1 || s.Cost != 0 {
		t.Errorf("%+v", s)
	}
}

func TestDearTier(t *testing.T) {
	for body, want := range map[string]string{
		`{"model":"m"}`: "", `{"service_tier":"auto","speed":null}`: "", `{"service_tier":"priority"}`: "service_tier",
		`{"speed": "fast"}`: "speed", `{"service_tier":"au\u0074o"}`: "service_tier", `{"service_tie\u0072":"priority"}`: "service_tier",
		`{"metadata":{"speed":"fast"}}`: "", `{"inference_geo":"us"}`: "inference_geo", `{"inference_geo":"global"}`: "",
	} {
		if got := DearTier([]byte(body)); got != want {
			t.Errorf("%s: %q, want %q", body, got, want)
		}
	}
}
