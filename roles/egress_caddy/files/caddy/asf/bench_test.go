// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"asf.sandbox/caddy/front"
	"github.com/caddyserver/caddy/v2"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp/reverseproxy" // what the front is measured against
)

// The front against Caddy's own reverse proxy, bare, in one process with their upstream and clients, in turns.

// measured is build/bench-front.json. Clients and upstream share the process's processors with what is measured, so
// throughput_loss is what somebody sees who runs all on one machine.
type measured struct {
	AddedMsP50     float64            `json:"added_ms_p50"`
	FrontMsP50     float64            `json:"front_ms_p50"`
	BareMsP50      float64            `json:"bare_ms_p50"`
	FirstByteMs    float64            `json:"first_byte_added_ms_p50"`
	ThroughputLoss float64            `json:"throughput_loss"`
	LossBy         map[string]float64 `json:"throughput_loss_by_connections"`
	WalkMsPerMB    float64            `json:"walk_ms_per_mb"`
}

// side is one of the two ways to the upstream.
type side struct {
	url    string
	client *http.Client
}

func (s side) ask(b *testing.B, body []byte) (first, all time.Duration) {
	start := time.Now()
	q, err := http.NewRequest(http.MethodPost, s.url, bytes.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	q.Header.Set("Authorization", "Bearer "+testToken)
	q.Header.Set("Content-Type", "application/json")
	resp, err := s.client.Do(q)
	if err != nil {
		b.Fatal(err)
	}
	first = time.Since(start)
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK {
		b.Fatal(err, resp.StatusCode)
	}
	return first, time.Since(start)
}

// rate is requests per second of n clients.
func (s side) rate(b *testing.B, n int, body []byte, during time.Duration) float64 {
	var done atomic.Int64
	var wait sync.WaitGroup
	start := time.Now()
	for range n {
		wait.Go(func() {
			for time.Since(start) < during {
				s.ask(b, body)
				done.Add(1)
			}
		})
	}
	wait.Wait()
	return float64(done.Load()) / time.Since(start).Seconds()
}

func median(list []float64) float64 {
	sort.Float64s(list)
	return list[len(list)/2]
}

func sides(b *testing.B, upstream string) (fronted, bare side) {
	dir := b.TempDir()
	write := func(name, text string) string {
		if err := os.WriteFile(dir+"/"+name, []byte(text), 0o600); err != nil {
			b.Fatal(err)
		}
		return dir + "/" + name
	}
	handler := m{"handler": "asf_inference", "session": "bench.main", "protocol": "anthropic", "upstream": upstream,
		"token_file": write("token", testToken), "key_file": write("key", testMaster)}
	stock := m{"handler": "reverse_proxy", "upstreams": []m{{"dial": upstream}}, "transport": m{"protocol": "http", "network_proxy": m{"from": "none"}}}
	config := caddyConfig(dir+"/log", serverConfig("127.0.0.1:39801", "L2", handler, nil))
	apps := config["apps"].(m)["http"].(m)["servers"].(m)
	apps["bare"] = m{"listen": []string{"127.0.0.1:39802"}, "protocols": []string{"h1"}, "automatic_https": m{"disable": true}, "routes": []m{{"handle": []m{stock}}}}
	if err := loadConfig(config); err != nil {
		b.Fatal(err)
	}
	client := func() *http.Client {
		return &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 100, DisableCompression: true}}
	}
	return side{"http://127.0.0.1:39801/v1/messages", client()}, side{"http://127.0.0.1:39802/v1/messages", client()}
}

// BenchmarkFront writes its results to the file that ASF_BENCH_FRONT names.
func BenchmarkFront(b *testing.B) {
	answer := []byte(`{"content":[{"type":"text","text":"` + strings.Repeat("some words of a model, ", 4450) + `"}],"usage":{"input_tokens":1,"output_tokens":2}}`)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		_, _ = io.Copy(io.Discard, q.Body)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(answer)
	}))
	defer upstream.Close()
	fronted, bare := sides(b, strings.TrimPrefix(upstream.URL, "http://"))
	defer func() { _ = caddy.Stop() }()
	text := strings.Repeat(`some code that a tool has read\n\tfmt.Println(\"hello\")\n`, 1780)
	large := []byte(`{"model":"m","max_tokens":1000,"messages":[{"role":"user","content":[{"type":"text","text":"` + text + `"}]}]}`)
	out := measured{LossBy: map[string]float64{}}
	latencies(b, fronted, bare, large, &out)
	for name, n := range map[string]int{"1": 1, "16": 16, "64": 64} {
		var ratios []float64
		for range 5 {
			one, two := fronted.rate(b, n, []byte(least), time.Second), bare.rate(b, n, []byte(least), time.Second)
			ratios = append(ratios, 1-one/two)
		}
		out.LossBy[name] = median(ratios)
		out.ThroughputLoss = max(out.ThroughputLoss, out.LossBy[name])
	}
	out.WalkMsPerMB = walkCost(b, large)
	raw, _ := json.MarshalIndent(out, "", "  ")
	b.Logf("%s", raw)
	if file := os.Getenv("ASF_BENCH_FRONT"); file != "" {
		if err := os.WriteFile(file, append(raw, '\n'), 0o644); err != nil {
			b.Fatal(err)
		}
	}
}

func latencies(b *testing.B, fronted, bare side, body []byte, out *measured) {
	var f, p, first []float64
	ms := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
	for range 400 {
		f1, all1 := fronted.ask(b, body)
		f2, all2 := bare.ask(b, body)
		f, p, first = append(f, ms(all1)), append(p, ms(all2)), append(first, ms(f1)-ms(f2))
	}
	out.FrontMsP50, out.BareMsP50, out.FirstByteMs = median(f), median(p), median(first)
	out.AddedMsP50 = out.FrontMsP50 - out.BareMsP50
}

func walkCost(b *testing.B, body []byte) float64 {
	all, err := front.Endpoints()
	if err != nil {
		b.Fatal(err)
	}
	var took []float64
	for range 200 {
		start := time.Now()
		if _, no := all["POST /v1/messages"].Check(body, &front.Grants{}); no != nil {
			b.Fatal(no)
		}
		took = append(took, float64(time.Since(start).Nanoseconds())/1e6/(float64(len(body))/1e6))
	}
	return median(took)
}
