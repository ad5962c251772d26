// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// planWith returns a good plan as JSON with one key changed ("probes.x" goes one level down).
func planWith(t *testing.T, key string, value any) map[string]any {
	t.Helper()
	raw, _ := json.Marshal(goodPlan(t, "true"))
	m := map[string]any{}
	if err := json.Unmarshal(raw, &m); err != nil {
		t.Fatal(err)
	}
	if below, ok := strings.CutPrefix(key, "probes."); ok {
		m["probes"].(map[string]any)[below] = value
	} else if key != "" {
		m[key] = value
	}
	return m
}

func TestReadPlanRefusesWhatItDoesNotUnderstand(t *testing.T) {
	for _, c := range []struct {
		key   string
		value any
		says  string
	}{
		{"", nil, ""},
		{"version", 2, "version: found 2"},
		{"unknown", 1, `unknown field "unknown"`},
		{"probes.unknown", 1, `unknown field "unknown"`},
		{"plan_digest", "", "plan_digest"},
		{"socket", "a/b", "socket"},
		{"socket", "", "socket"},
		{"deadline_s", 0, "deadline_s"},
		{"deadline_s", 1 << 30, "deadline_s"},
		{"time_s", 0, ""},
		{"time_s", 28800, ""},
		{"time_s", -1, "time_s"},
		{"time_s", 1 << 40, "time_s"},
		{"caps", "0", "caps"},
		{"caps", "000000000000000G", "caps"},
		{"argv", []string{}, "argv"},
		{"argv", []string{""}, "argv"},
		{"cwd", "here", "cwd"},
		{"token_env", []string{"TOKEN"}, "needs token_file"},
		{"token_env", []string{"A=B"}, "token_env"},
		{"env", map[string]string{"A B": "c"}, "env"},
		{"env", map[string]string{"A": "b\x00c"}, "env"},
		{"env", map[string]int{"A": 1}, "cannot unmarshal"},
		{"probes.reach", []string{"front:4000"}, "probes.reach"},
		{"probes.unreach", []string{"198.51.100.1"}, "probes.unreach"},
		{"probes.dns", []string{"198.51.100.1:x"}, "probes.dns"},
		{"probes.allow", map[string]string{"proxy": "1.2.3.4:1", "target": "a b:443"}, "target"},
		{"probes.deny", map[string]string{"proxy": "1.2.3.4:1", "target": "a\r\nX: y:443"}, "target"},
		{"probes.deny", map[string]string{"proxy": "x:1", "target": "a:443"}, "deny.proxy"},
		{"probes.tls", map[string]string{"addr": "1.2.3.4:443", "allow": "a.example.com", "deny": "b.invalid"}, "no forward proxy"},
		{"probes.tls", map[string]string{"addr": "a.example.com:443"}, "tls.addr"},
		{"probes.tls", map[string]string{"addr": "1.2.3.4:443", "deny": strings.Repeat("a", 254)}, "too long"},
		{"probes.front", map[string]string{"addr": "1.2.3.4:1", "path": "/x"}, "needs token_file"},
	} {
		_, err := readPlan(writePlan(t, planWith(t, c.key, c.value)))
		if (c.says == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s = %v: %v", c.key, c.value, err)
		}
	}
}

func TestReadPlanRefusesOddFiles(t *testing.T) {
	good, _ := json.Marshal(goodPlan(t, "true"))
	for name, text := range map[string]string{"empty": "", "two": string(good) + string(good), "list": "[]", "cut": string(good[:40]),
		"large": strings.Repeat(" ", maxPlanBytes) + string(good)} {
		if _, err := readPlan(writeFile(t, "p", text, 0o644)); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
	if _, err := readPlan("/nowhere/gate.json"); err == nil {
		t.Error("a missing file was accepted")
	}
}

func TestToken(t *testing.T) {
	for text, want := range map[string]string{"tok": "tok", "tok\n": "tok", "tok\r\n": "tok", "": "", "\n": "", "a b": "", "a\nb": "",
		"a\x00": "", "é": "", strings.Repeat("x", maxToken+1): ""} {
		got, err := readToken(&Plan{TokenFile: writeFile(t, "token", text, 0o600)})
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q %v", text, got, err)
		}
	}
	if got, err := readToken(&Plan{}); got != "" || err != nil {
		t.Errorf("no token file: %q %v", got, err)
	}
}

func TestEnvironmentIsExactlyThePlannedOne(t *testing.T) {
	p := &Plan{Env: map[string]string{"B": "2", "A": "x=y"}, TokenEnv: []string{"T"}}
	if got := p.environment("tok"); !reflect.DeepEqual(got, []string{"A=x=y", "B=2", "T=tok"}) {
		t.Error(got)
	}
}

func TestPeersAreTheHostsOfTheListeners(t *testing.T) {
	pr := &Probes{Reach: []string{"198.18.0.1:3128"}, Allow: &ProxyTarget{Proxy: "198.18.0.1:3128"},
		Deny: &ProxyTarget{Proxy: "198.18.0.9:1"}, Front: &FrontTarget{Addr: "198.18.0.1:4000"},
		Closed: []string{"198.18.0.5:3129"}, TLS: &TLSTarget{Addr: "198.18.0.8:443"}}
	if got := sortedKeys(pr.peers()); !reflect.DeepEqual(got, []string{"198.18.0.1", "198.18.0.8", "198.18.0.9"}) {
		t.Error(got)
	}
}

func TestEveryRoleSaysThatThePlanIsUnreadable(t *testing.T) {
	for _, args := range [][]string{{"run", "--plan", "/nowhere"}, {"probe", "--plan", "/nowhere"},
		{"exec", "--plan", "/nowhere", "--", "true"}} {
		out, err := gate(args...).CombinedOutput()
		if exitOf(t, err) != exitPlan || strings.Count(string(out), "\n") != 1 || !strings.Contains(string(out), "/nowhere") {
			t.Errorf("%q: %v %q", args, err, out)
		}
	}
	p := goodPlan(t, "true")
	p.TokenFile = "/nowhere/token"
	out, err := gate("run", "--plan", writePlan(t, p)).CombinedOutput()
	if exitOf(t, err) != exitPlan || !strings.Contains(string(out), "token") {
		t.Errorf("%v %q", err, out)
	}
}
