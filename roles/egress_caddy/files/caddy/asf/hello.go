// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"time"
)

// maxHello bounds what is read before a ClientHello must be complete. Post-quantum key shares and long extension
// lists stay under 8 KiB.
const maxHello = 32 << 10

const ( // RFC 8446 section 5.1, ContentType
	recordAlert     = 0x15
	recordHandshake = 0x16
)

var (
	errNotTLS    = errors.New("not a TLS handshake")
	errHelloLong = errors.New("ClientHello too long")
	errHelloRead = errors.New("ClientHello was read")
)

// readHello reads one ClientHello, over any number of records, and returns its server name ("" when it has none)
// with every byte that was consumed, to be replayed to the destination. crypto/tls does the parsing: it refuses a
// second server_name extension and a second name in it (RFC 6066 section 3), so there is one name or an error.
// io.EOF with no bytes means that the client closed without sending anything.
func readHello(r io.Reader) (raw []byte, name string, err error) {
	first := make([]byte, 1)
	if _, err = io.ReadFull(r, first); err != nil {
		return nil, "", err
	}
	if first[0] != recordHandshake {
		return first, "", errNotTLS
	}
	tap := &tapConn{r: io.MultiReader(bytes.NewReader(first), r)}
	err = tls.Server(tap, &tls.Config{
		GetConfigForClient: func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			name = h.ServerName
			return nil, errHelloRead
		},
	}).Handshake()
	if errors.Is(err, errHelloRead) {
		return tap.seen.Bytes(), name, nil
	}
	return tap.seen.Bytes(), "", err
}

// tapConn lets crypto/tls read a hello from any reader, keeps what it read, and swallows the alert that it writes.
type tapConn struct {
	r    io.Reader
	seen bytes.Buffer
}

func (t *tapConn) Read(p []byte) (int, error) {
	room := maxHello - t.seen.Len()
	if room <= 0 {
		return 0, errHelloLong
	}
	n, err := t.r.Read(p[:min(len(p), room)])
	t.seen.Write(p[:n])
	return n, err
}

func (t *tapConn) Write(p []byte) (int, error)      { return len(p), nil }
func (t *tapConn) Close() error                     { return nil }
func (t *tapConn) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (t *tapConn) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (t *tapConn) SetDeadline(time.Time) error      { return nil }
func (t *tapConn) SetReadDeadline(time.Time) error  { return nil }
func (t *tapConn) SetWriteDeadline(time.Time) error { return nil }
