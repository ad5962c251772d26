// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"sort"
	"strconv"
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
	Machine        string             `json:"machine"`
	AddedMsP50     float64            `json:"added_ms_p50"` // a request of 100 kB, one connection
	FrontMsP50     float64            `json:"front_ms_p50"`
	BareMsP50      float64            `json:"bare_ms_p50"`
	FirstByteMs    float64            `json:"first_streamed_byte_added_ms_p50"` // of a stream of events
	FirstByteMsP99 float64            `json:"first_streamed_byte_added_ms_p99"` // difference of the two sides' own p99
	ThroughputLoss float64            `json:"throughput_loss"`                  // the worst of the three
	LossBy         map[string]float64 `json:"throughput_loss_by_connections"`   // answers of 100 kB: median of the rounds
	LossSpread     map[string]string  `json:"throughput_loss_quartiles"`
	PerSecond      map[string]float64 `json:"front_requests_per_second"`
	WalkMsPerMB    float64            `json:"walk_ms_per_mb"`            // a conversation of a coding agent
	TokenNs        map[string]float64 `json:"token_check_ns"`            // of wrong tokens, by how many of their bytes are right
	HeapMB         []float64          `json:"heap_mb_at_64_connections"` // after 8, 16 and 24 turns, garbage collected
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
	defer func() { _ = resp.Body.Close() }()
	_, err = io.ReadFull(resp.Body, make([]byte, 1))
	first = time.Since(start)
	if err == nil {
		_, err = io.Copy(io.Discard, resp.Body)
	}
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

// quantile sorts a list.
func quantile(list []float64, q float64) float64 {
	sort.Float64s(list)
	return list[int(q*float64(len(list)-1))]
}

func median(list []float64) float64 { return quantile(list, 0.5) }

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

// fakeModel answers with 100 kB, or with a stream of events, each sent at once.
func fakeModel() *httptest.Server {
	answer := []byte(`{"content":[{"type":"text","text":"` + strings.Repeat("some words of a model, ", 4450) + `"}],"usage":{"input_tokens":1,"output_tokens":2}}`)
	event := []byte("event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\" words\"}}\n\n")
	return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		body, _ := io.ReadAll(q.Body)
		if !bytes.Contains(body, []byte(`"stream":true`)) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", strconv.Itoa(len(answer))) // as LiteLLM's are
			_, _ = w.Write(answer)
			return
		}
		w.Header().Set("Content-Type", "text/event-stream")
		for range 20 {
			_, _ = w.Write(event)
			_ = http.NewResponseController(w).Flush()
		}
	}))
}

// BenchmarkFront writes its results to the file that ASF_BENCH_FRONT names.
func BenchmarkFront(b *testing.B) {
	upstream := fakeModel()
	defer upstream.Close()
	fronted, bare := sides(b, strings.TrimPrefix(upstream.URL, "http://"))
	defer func() { _ = caddy.Stop() }()
	text := strings.Repeat(`some code that a tool has read\n\tfmt.Println(\"hello\")\n`, 1780)
	large := []byte(`{"model":"m","max_tokens":1000,"messages":[{"role":"user","content":[{"type":"text","text":"` + text + `"}]}]}`)
	out := measured{Machine: fmt.Sprintf("%d processors, %s/%s, %s", runtime.NumCPU(), runtime.GOOS, runtime.GOARCH, runtime.Version()),
		LossBy: map[string]float64{}, LossSpread: map[string]string{}, PerSecond: map[string]float64{}}
	latencies(b, fronted, bare, large, &out)
	for _, n := range []int{1, 16, 64} {
		throughput(b, fronted, bare, n, &out)
	}
	out.WalkMsPerMB, out.TokenNs = walkCost(b, large), tokenCost()
	raw, _ := json.MarshalIndent(out, "", "  ")
	b.Logf("%s", raw)
	if file := os.Getenv("ASF_BENCH_FRONT"); file != "" {
		if err := os.WriteFile(file, append(raw, '\n'), 0o644); err != nil {
			b.Fatal(err)
		}
	}
}

// throughput compares short turns of both sides, which change places each round: what else the machine does meets both.
func throughput(b *testing.B, fronted, bare side, n int, out *measured) {
	const rounds, turn = 24, 400 * time.Millisecond
	name, body := strconv.Itoa(n), []byte(least)
	var losses, rates []float64
	for round := range rounds {
		var rate [2]float64
		for _, which := range [][]int{{0, 1}, {1, 0}}[round%2] {
			runtime.GC()
			rate[which] = []side{fronted, bare}[which].rate(b, n, body, turn)
		}
		if round > 1 { // the first ones open connections
			losses, rates = append(losses, 1-rate[0]/rate[1]), append(rates, rate[0])
		}
		if n == 64 && round%8 == 7 {
			out.HeapMB = append(out.HeapMB, heapMB())
		}
	}
	out.LossBy[name], out.PerSecond[name] = median(losses), median(rates)
	out.LossSpread[name] = fmt.Sprintf("%.3f to %.3f", quantile(losses, 0.25), quantile(losses, 0.75))
	if out.ThroughputLoss = max(out.ThroughputLoss, out.LossBy[name]); n == 1 {
		out.ThroughputLoss = out.LossBy[name]
	}
}

// heapMB is what lives on the heap, in MB.
func heapMB() float64 {
	var heap runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&heap)
	return float64(heap.HeapAlloc) / 1e6
}

func latencies(b *testing.B, fronted, bare side, body []byte, out *measured) {
	stream := []byte(`{"model":"m","stream":true,"messages":[]}`)
	ms := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }
	var all, first [2][]float64
	for round := range 1000 {
		for _, which := range [][]int{{0, 1}, {1, 0}}[round%2] {
			s := []side{fronted, bare}[which]
			_, took := s.ask(b, body)
			all[which] = append(all[which], ms(took))
			took, _ = s.ask(b, stream)
			first[which] = append(first[which], ms(took))
		}
	}
	out.FrontMsP50, out.BareMsP50 = median(all[0]), median(all[1])
	out.AddedMsP50 = out.FrontMsP50 - out.BareMsP50
	out.FirstByteMs, out.FirstByteMsP99 = median(first[0])-median(first[1]), quantile(first[0], 0.99)-quantile(first[1], 0.99)
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

// tokenCost shows that a wrong token takes as long whatever of it is right.
func tokenCost() map[string]float64 {
	held, took := newCredential(testToken), map[string][]float64{}
	for range 400 {
		for _, right := range []int{0, 1, len(testToken) / 2, len(testToken) - 1} {
			guess := testToken[:right] + strings.Repeat("!", len(testToken)-right)
			h := http.Header{"Authorization": {"Bearer " + guess}}
			start := time.Now()
			for range 100 {
				held.authorized(h)
			}
			name := strconv.Itoa(right)
			took[name] = append(took[name], float64(time.Since(start).Nanoseconds())/100)
		}
	}
	out := map[string]float64{}
	for name, list := range took {
		out[name] = median(list)
	}
	return out
}
