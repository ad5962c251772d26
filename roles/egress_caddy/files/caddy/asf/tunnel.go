// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

var buffers = sync.Pool{New: func() any { b := make([]byte, 64<<10); return &b }}

// flow carries bytes between a client and a destination with one idle clock for both directions.
type flow struct {
	client, upstream net.Conn
	fromClient       io.Reader    // starts with what was read ahead of the tunnel
	halfClient       func() error // sends the destination's FIN on to the client
	idle             time.Duration
	last             atomic.Int64 // when a byte was last carried, in Unix nanoseconds
	up, down         atomic.Int64
	outcome          sync.Once
	reason, detail   string
}

// run returns when both directions have ended.
func (f *flow) run() {
	f.last.Store(time.Now().UnixNano())
	done := make(chan struct{})
	go func() {
		defer close(done)
		f.copy(f.upstream, f.client, f.fromClient, &f.up, closeWriteOf(f.upstream), "client")
	}()
	f.copy(f.client, f.upstream, f.upstream, &f.down, f.halfClient, "destination")
	<-done
	f.end(reasonOK, "")
}

// copy moves one direction. The end of a stream is passed on as half a close; everything else ends both directions.
func (f *flow) copy(dst, src net.Conn, from io.Reader, count *atomic.Int64, half func() error, side string) {
	bp, _ := buffers.Get().(*[]byte)
	defer buffers.Put(bp)
	for {
		_ = src.SetReadDeadline(time.Now().Add(f.idle))
		n, err := from.Read(*bp)
		if n > 0 {
			f.last.Store(time.Now().UnixNano())
			_ = dst.SetWriteDeadline(time.Now().Add(f.idle))
			written, werr := dst.Write((*bp)[:n])
			count.Add(int64(written))
			if werr != nil {
				f.cut(reasonOK, "write towards the other side of "+side+" failed")
				return
			}
		}
		switch {
		case err == nil:
		case errors.Is(err, io.EOF):
			_ = half()
			return
		case timedOut(err) && f.busy():
		case timedOut(err):
			f.cut(reasonIdleTimeout, "")
			return
		default:
			f.cut(reasonOK, side+" broke the connection")
			return
		}
	}
}

// busy tells whether the other direction carried something while this one waited.
func (f *flow) busy() bool {
	return time.Since(time.Unix(0, f.last.Load())) < f.idle
}

func (f *flow) end(reason, detail string) {
	f.outcome.Do(func() { f.reason, f.detail = reason, detail })
}

func (f *flow) cut(reason, detail string) {
	f.end(reason, detail)
	_ = f.client.Close()
	_ = f.upstream.Close()
}

func timedOut(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// closeWriteOf returns the connection's half-close; a connection without one is closed whole, which the other side
// notices as the end of the tunnel.
func closeWriteOf(c net.Conn) func() error {
	if t, ok := c.(interface{ CloseWrite() error }); ok {
		return t.CloseWrite
	}
	return c.Close
}
