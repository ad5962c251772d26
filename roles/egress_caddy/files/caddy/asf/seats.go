// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"io"
	"net"
	"sync/atomic"
	"time"
)

const (
	defaultMaxConns = 256
	gentlePartings  = 16 // connections at a time that are answered before they are closed
)

// seats caps the connections of one listener.
type seats struct {
	most   int64
	open   atomic.Int64
	gentle chan struct{}
}

func newSeats(most int) *seats {
	return &seats{most: int64(most), gentle: make(chan struct{}, gentlePartings)}
}

// take counts a connection in; false means that there is no room.
func (s *seats) take() bool {
	if s.open.Add(1) <= s.most {
		return true
	}
	s.open.Add(-1)
	return false
}

func (s *seats) give() { s.open.Add(-1) }

// turnAway answers a connection beyond the cap without reading what it asks. Few at a time are let down gently; a
// flood is just closed.
func (s *seats) turnAway(c net.Conn, answer []byte) {
	select {
	case s.gentle <- struct{}{}:
		go func() {
			defer func() { <-s.gentle; _ = c.Close() }()
			part(c, closeWriteOf(c), answer)
		}()
	default:
		_ = c.Close()
	}
}

const (
	lingerTime  = 300 * time.Millisecond
	lingerBytes = 64 << 10
)

// part says a last word and lets it arrive: it sends FIN and reads on for a moment, because closing with unread bytes
// turns the answer into a reset. Without a half-close there is no lingering. The caller closes the connection.
func part(c net.Conn, half func() error, answer []byte) {
	_ = c.SetDeadline(time.Now().Add(time.Second))
	if _, err := c.Write(answer); err != nil || half == nil {
		return
	}
	_ = half()
	_ = c.SetReadDeadline(time.Now().Add(lingerTime))
	_, _ = io.CopyN(io.Discard, c, lingerBytes)
}
