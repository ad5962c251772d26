// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	soakClients = 48
	soakRounds  = 12
	soakConns   = 32
	soakBody    = 4 << 20
	soakMemory  = 8 << 20
	soakOther   = 24 << 20 // buffers of connections; without a bound of bodies it would be 50 MB and more
)

// peaks are the largest numbers that were seen while something ran.
type peaks struct{ heap, files atomic.Int64 }

func (p *peaks) watch(stop <-chan struct{}, done *sync.WaitGroup) {
	done.Go(func() {
		for {
			var now runtime.MemStats
			runtime.ReadMemStats(&now)
			p.heap.Store(max(p.heap.Load(), int64(now.HeapInuse)))
			p.files.Store(max(p.files.Load(), openFiles()))
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	})
}

func openFiles() int64 {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 1 << 30
	}
	return int64(len(all))
}

const endless = `{"model":"endless","messages":[]}`

var soakFiller = bytes.Repeat([]byte("x"), soakBody-100)

// misbehave is one request of a client that is slow, greedy, broken or gone.
func misbehave(addr string, kind int) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	send := func(framing string, parts ...[]byte) {
		_, _ = io.WriteString(c, "POST /v1/messages HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "+testToken+"\r\nContent-Type: application/json\r\nConnection: close\r\n"+framing+"\r\n\r\n")
		for _, part := range parts {
			_, _ = c.Write(part)
		}
	}
	length := func(n int) string { return fmt.Sprintf("Content-Length: %d", n) }
	const chunked = "Transfer-Encoding: chunked"
	switch kind % 8 {
	case 0: // slow: it never ends
		send(length(soakBody), soakFiller[:200<<10])
	case 1: // huge, and says so
		send(length(1<<40), soakFiller)
	case 2: // huge, in a chunk without end
		send(chunked, []byte("ffffffff\r\n"), soakFiller, soakFiller)
	case 3: // as large as may be, and no JSON
		send(length(len(soakFiller)), soakFiller)
	case 4: // broken chunks
		send(chunked, []byte("zz\r\n{}"))
	case 5: // abandoned in the middle of the body
		send(length(soakBody), soakFiller[:soakBody/2])
		return
	case 6: // abandoned in the middle of the answer
		send(length(len(endless)), []byte(endless))
		_, _ = io.ReadFull(c, make([]byte, 300))
		return
	case 7: // large, and passes
		head, tail := []byte(`{"model":"m","messages":[{"role":"user","content":"`), []byte(`"}]}`)
		send(length(len(head)+1<<20+len(tail)), head, soakFiller[:1<<20], tail)
	}
	_, _ = io.Copy(io.Discard, c)
}

// soakModel swallows a request and answers with a few bytes, or without an end.
func soakModel(w http.ResponseWriter, q *http.Request) {
	_, _ = io.Copy(io.Discard, q.Body)
	if q.ContentLength != int64(len(endless)) {
		_, _ = io.WriteString(w, `{"usage":{"input_tokens":1,"output_tokens":1}}`)
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	for q.Context().Err() == nil {
		if _, err := io.WriteString(w, "data: {}\n\n"); err != nil {
			return
		}
		_ = http.NewResponseController(w).Flush()
	}
}

// TestSoak: slow, huge, broken and abandoned bodies from more clients than there are places. Memory and file descriptors
// stay within their bounds while it lasts and come back after it, and the front still serves.
func TestSoak(t *testing.T) {
	broker := httptest.NewServer(http.HandlerFunc(soakModel))
	defer broker.Close()
	handler := m{"handler": "asf_inference", "session": "soak.main", "protocol": "anthropic", "upstream": strings.TrimPrefix(broker.URL, "http://"),
		"token_file": secretFile(t, testToken), "key_file": secretFile(t, testMaster), "max_body": soakBody, "body_memory": soakMemory, "body_timeout": "300ms"}
	f := &bench{proxy: startCaddy(t, "L2", handler, m{"max_conns": soakConns})}
	defer debug.SetGCPercent(debug.SetGCPercent(20)) // what lives is of interest, not how late it is collected
	runtime.GC()
	var start runtime.MemStats
	runtime.ReadMemStats(&start)
	files := openFiles()
	var peak peaks
	var clients, watcher sync.WaitGroup
	stop := make(chan struct{})
	peak.watch(stop, &watcher)
	for n := range soakClients {
		clients.Go(func() {
			for round := range soakRounds {
				misbehave(f.addr, n+round)
			}
		})
	}
	clients.Wait()
	close(stop)
	watcher.Wait()
	t.Logf("heap: %d MB before, %d MB at most; files: %d before, %d at most", start.HeapInuse>>20, peak.heap.Load()>>20, files, peak.files.Load())
	if most := int64(start.HeapInuse) + soakMemory + soakOther; peak.heap.Load() > most {
		t.Errorf("%d MB of heap, at most %d", peak.heap.Load()>>20, most>>20)
	}
	// Here clients, places, the front's connections to the broker and the broker's ends of them are one process's.
	if most := files + 2*soakClients + 3*soakConns; peak.files.Load() > most {
		t.Errorf("%d files, at most %d", peak.files.Load(), most)
	}
	if r := f.ask("POST /v1/messages", least); r.code != 200 {
		t.Errorf("it does not serve any more: %+v", r)
	}
	eventually(t, "files are closed", func() bool { return openFiles() <= files+2 })
	eventually(t, "memory is given back", func() bool {
		var now runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&now)
		return int64(now.HeapInuse) <= int64(start.HeapInuse)+(8<<20)
	})
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !is(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}
