// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"strings"
	"testing"
	"testing/iotest"
)

// clientHello returns the first record that crypto/tls sends for a server name.
func clientHello(t testing.TB, sni string) []byte {
	t.Helper()
	a, b := net.Pipe()
	go func() { _ = tls.Client(a, &tls.Config{ServerName: sni, InsecureSkipVerify: true}).Handshake() }()
	buf := make([]byte, 16<<10)
	n, err := b.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	_ = b.Close()
	return buf[:n]
}

// split cuts one record's payload into records of n bytes (RFC 8446 section 5.1 allows it).
func split(hello []byte, n int) []byte {
	var out []byte
	for p := hello[5:]; len(p) > 0; {
		k := min(n, len(p))
		out = append(append(out, hello[0], hello[1], hello[2], byte(k>>8), byte(k)), p[:k]...)
		p = p[k:]
	}
	return out
}

// twice returns a hello with its server_name extension doubled, lengths put right: two names for two readers.
func twice(t testing.TB, hello []byte, name string) []byte {
	t.Helper()
	ext := append([]byte{0, 0, 0, byte(len(name) + 5), 0, byte(len(name) + 3), 0, 0, byte(len(name))}, name...)
	i := bytes.Index(hello, ext)
	if i < 0 {
		t.Fatal("no server_name extension found")
	}
	other := bytes.Replace(ext, []byte(name), []byte(strings.Repeat("x", len(name)-5)+".test"), 1)
	out := append(append(append([]byte(nil), hello[:i+len(ext)]...), other...), hello[i+len(ext):]...)
	add := func(at, size int) { // big-endian length of size bytes at offset at
		v := 0
		for k := range size {
			v = v<<8 | int(out[at+k])
		}
		v += len(other)
		for k := size - 1; k >= 0; k-- {
			out[at+k] = byte(v)
			v >>= 8
		}
	}
	add(3, 2) // record
	add(6, 3) // handshake
	at := 5 + 4 + 2 + 32
	at += 1 + int(out[at])                     // session id
	at += 2 + int(out[at])<<8 + int(out[at+1]) // cipher suites
	at += 1 + int(out[at])                     // compression
	add(at, 2)                                 // extensions
	return out
}

func TestReadHello(t *testing.T) {
	h := clientHello(t, "a.example.test")
	endless := append([]byte{0x16, 3, 1, 0x40, 0, 1, 0, 0xff, 0xff}, make([]byte, 1<<20)...)
	for name, c := range map[string]struct {
		in   io.Reader
		sni  string
		fail bool
		raw  []byte
	}{
		"whole":          {bytes.NewReader(h), "a.example.test", false, h},
		"byte by byte":   {iotest.OneByteReader(bytes.NewReader(h)), "a.example.test", false, h},
		"records of 60":  {bytes.NewReader(split(h, 60)), "a.example.test", false, split(h, 60)},
		"records of 7":   {bytes.NewReader(split(h, 7)), "a.example.test", false, split(h, 7)},
		"no name":        {bytes.NewReader(clientHello(t, "")), "", false, nil},
		"two names":      {bytes.NewReader(twice(t, h, "a.example.test")), "", true, nil},
		"truncated":      {bytes.NewReader(h[:len(h)-9]), "", true, nil},
		"http":           {strings.NewReader("GET / HTTP/1.1\r\n\r\n"), "", true, nil},
		"SSLv2":          {bytes.NewReader([]byte{0x80, 0x2e, 1, 0, 2}), "", true, nil},
		"alert":          {bytes.NewReader([]byte{0x15, 3, 1, 0, 2, 1, 0}), "", true, nil},
		"type, then not": {strings.NewReader("\x16\x03\x01\x00\x09GET / HTT"), "", true, nil},
		"endless":        {bytes.NewReader(endless), "", true, nil},
		"nothing":        {strings.NewReader(""), "", true, nil},
	} {
		raw, sni, err := readHello(c.in)
		if sni != c.sni || (err != nil) != c.fail {
			t.Errorf("%s: name %q, error %v", name, sni, err)
		}
		if c.raw != nil && !bytes.Equal(raw, c.raw) {
			t.Errorf("%s: %d bytes to replay, %d were sent", name, len(raw), len(c.raw))
		}
		if len(raw) > maxHello {
			t.Errorf("%s: %d bytes were kept", name, len(raw))
		}
	}
}

// FuzzReadHello: no input panics; what is replayed is what was read, bounded; a name comes only without an error.
func FuzzReadHello(f *testing.F) {
	h := clientHello(f, "a.example.test")
	for _, seed := range [][]byte{h, split(h, 7), h[:len(h)-9], twice(f, h, "a.example.test"), clientHello(f, ""), {0x16}, {0x15, 3, 1, 0, 2, 1, 0},
		[]byte("GET / HTTP/1.1\r\n\r\n")} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		raw, name, err := readHello(bytes.NewReader(in))
		if !bytes.HasPrefix(in, raw) || len(raw) > maxHello {
			t.Errorf("%d bytes to replay of %d", len(raw), len(in))
		}
		if err != nil && name != "" {
			t.Errorf("name %q with error %v", name, err)
		}
		if name != "" && !bytes.Contains(bytes.Join(splitRecords(raw), nil), []byte(name)) {
			t.Errorf("name %q is not in the bytes", name)
		}
	})
}

// splitRecords returns the payloads of the records in raw.
func splitRecords(raw []byte) (out [][]byte) {
	for len(raw) >= 5 {
		n := min(int(raw[3])<<8|int(raw[4]), len(raw)-5)
		out = append(out, raw[5:5+n])
		raw = raw[5+n:]
	}
	return out
}
