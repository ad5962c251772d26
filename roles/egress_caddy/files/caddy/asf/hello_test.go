// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"bytes"
	"crypto/ecdh"
	"crypto/rand"
	"crypto/tls"
	"io"
	mathrand "math/rand/v2"
	"net"
	"strings"
	"testing"
	"testing/iotest"
)

// clientHello returns the first record that crypto/tls sends for a server name.
func clientHello(t testing.TB, sni string) []byte {
	t.Helper()
	return firstFlight(t, &tls.Config{ServerName: sni, InsecureSkipVerify: true})
}

func firstFlight(t testing.TB, config *tls.Config) []byte {
	t.Helper()
	a, b := net.Pipe()
	go func() { _ = tls.Client(a, config).Handshake() }()
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

// extensionsAt is where a hello's list of extensions has its length.
func extensionsAt(hello []byte) int {
	at := 5 + 4 + 2 + 32
	at += 1 + int(hello[at])                       // session id
	at += 2 + int(hello[at])<<8 + int(hello[at+1]) // cipher suites
	return at + 1 + int(hello[at])                 // compression
}

// add raises a big-endian length of size bytes.
func add(b []byte, at, size, more int) {
	v := more
	for k := range size {
		v += int(b[at+k]) << (8 * (size - 1 - k))
	}
	for k := range size {
		b[at+k] = byte(v >> (8 * (size - 1 - k)))
	}
}

// insert returns a hello with bytes put in among its extensions, lengths put right.
func insert(hello []byte, at int, more []byte) []byte {
	out := append(append(append([]byte(nil), hello[:at]...), more...), hello[at:]...)
	add(out, 3, 2, len(more)) // record
	add(out, 6, 3, len(more)) // handshake
	add(out, extensionsAt(out), 2, len(more))
	return out
}

// serverName is a server_name extension with one name (RFC 6066 section 3).
func serverName(name string) []byte {
	return append([]byte{0, 0, 0, byte(len(name) + 5), 0, byte(len(name) + 3), 0, 0, byte(len(name))}, name...)
}

func find(t testing.TB, hello []byte, name string) int {
	t.Helper()
	i := bytes.Index(hello, serverName(name))
	if i < 0 {
		t.Fatal("no server_name extension found")
	}
	return i
}

// renamed returns a hello with another server name, of any bytes: crypto/tls itself would not send some.
func renamed(t testing.TB, hello []byte, from, to string) []byte {
	t.Helper()
	i := find(t, hello, from)
	n := len(serverName(from))
	out := append(append([]byte(nil), hello[:i]...), hello[i+n:]...)
	add(out, 3, 2, -n)
	add(out, 6, 3, -n)
	add(out, extensionsAt(out), 2, -n)
	return insert(out, i, serverName(to))
}

// twice returns a hello with its server_name extension doubled: two names for two readers.
func twice(t testing.TB, hello []byte, name string) []byte {
	t.Helper()
	return insert(hello, find(t, hello, name), serverName(strings.Repeat("x", len(name)-5)+".test"))
}

// alsoNamed returns a hello with a second entry of a type in its list of names.
func alsoNamed(t testing.TB, hello []byte, name string, kind byte, other string) []byte {
	t.Helper()
	i := find(t, hello, name)
	entry := append([]byte{kind, 0, byte(len(other))}, other...)
	out := insert(hello, i+len(serverName(name)), entry)
	add(out, i+2, 2, len(entry)) // extension
	add(out, i+4, 2, len(entry)) // list
	return out
}

// grease returns a hello with an extension of a reserved value first (RFC 8701).
func grease(hello []byte) []byte {
	return insert(hello, extensionsAt(hello)+2, []byte{0x0a, 0x0a, 0, 1, 0})
}

// encryptedHello is a hello with ECH (RFC 9849): outer can be read, inner cannot.
func encryptedHello(t testing.TB, outer, inner string) []byte {
	t.Helper()
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	public := key.PublicKey().Bytes()
	body := append([]byte{7, 0, 0x20, 0, byte(len(public))}, public...) // config id 7, DHKEM(X25519)
	body = append(body, 0, 4, 0, 1, 0, 1, 64, byte(len(outer)))         // HKDF-SHA256 with AES-128-GCM, longest name
	body = append(append(body, outer...), 0, 0)
	config := append([]byte{0xfe, 0x0d, byte(len(body) >> 8), byte(len(body))}, body...)
	return firstFlight(t, &tls.Config{ServerName: inner, MinVersion: tls.VersionTLS13,
		EncryptedClientHelloConfigList: append([]byte{byte(len(config) >> 8), byte(len(config))}, config...)})
}

// endlessHello is a hello of 65535 bytes in records of 16384.
func endlessHello() []byte {
	record := append([]byte{0x16, 3, 1, 0x40, 0}, make([]byte, 16384)...)
	out := bytes.Repeat(record, 5)
	copy(out[5:], []byte{1, 0, 0xff, 0xff})
	return out
}

func TestReadHello(t *testing.T) {
	h := clientHello(t, "a.example.test")
	endless := endlessHello()
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
		"two extensions": {bytes.NewReader(twice(t, h, "a.example.test")), "", true, nil},
		"two names":      {bytes.NewReader(alsoNamed(t, h, "a.example.test", 0, "b.test")), "", true, nil},
		"another type":   {bytes.NewReader(alsoNamed(t, h, "a.example.test", 9, "b.test")), "a.example.test", false, nil},
		"trailing dot":   {bytes.NewReader(renamed(t, h, "a.example.test", "a.example.test.")), "", true, nil},
		"empty name":     {bytes.NewReader(renamed(t, h, "a.example.test", "")), "", true, nil},
		"upper case":     {bytes.NewReader(renamed(t, h, "a.example.test", "A.eXample.test")), "A.eXample.test", false, nil},
		"NUL":            {bytes.NewReader(renamed(t, h, "a.example.test", "a.example.test\x00.b")), "a.example.test\x00.b", false, nil},
		"GREASE":         {bytes.NewReader(grease(h)), "a.example.test", false, grease(h)},
		"encrypted":      {bytes.NewReader(encryptedHello(t, "outer.example.test", "inner.test")), "outer.example.test", false, nil},
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

// helloSeeds are inputs from which others are made.
func helloSeeds(t testing.TB) [][]byte {
	h := clientHello(t, "a.example.test")
	return [][]byte{h, split(h, 7), h[:len(h)-9], twice(t, h, "a.example.test"), clientHello(t, ""), grease(h),
		alsoNamed(t, h, "a.example.test", 0, "b.test"), renamed(t, h, "a.example.test", "A.example.test\x00"), encryptedHello(t, "outer.test", "inner.test"), {0x16}, {0x15, 3, 1, 0, 2, 1, 0},
		[]byte("GET / HTTP/1.1\r\n\r\n")}
}

// FuzzReadHello: no input panics; what is replayed is what was read, bounded; a name comes only without an error, and
// is a target only in canonical form.
func FuzzReadHello(f *testing.F) {
	for _, seed := range helloSeeds(f) {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, in []byte) { judgeHello(t, in) })
}

// TestReadHelloMutated does the same with seeds in which a few bytes were changed, cut out or doubled.
func TestReadHelloMutated(t *testing.T) {
	by := mathrand.New(mathrand.NewPCG(1, 2))
	for _, seed := range helloSeeds(t) {
		for range 500 {
			in := bytes.Clone(seed)
			for range 1 + by.IntN(4) {
				at := by.IntN(len(in))
				switch by.IntN(3) {
				case 0:
					in[at] = byte(by.Uint32())
				case 1:
					in = append(in[:at:at], in[min(at+1+by.IntN(8), len(in)-1):]...)
				case 2:
					in = append(in[:at:at], in[at/2:]...)
				}
			}
			judgeHello(t, in)
		}
	}
}

func judgeHello(t *testing.T, in []byte) {
	t.Helper()
	raw, name, err := readHello(bytes.NewReader(in))
	if !bytes.HasPrefix(in, raw) || len(raw) > maxHello {
		t.Errorf("%x: %d bytes to replay of %d", in, len(raw), len(in))
	}
	if err != nil && name != "" {
		t.Errorf("%x: name %q with error %v", in, name, err)
	}
	if name != "" && !bytes.Contains(bytes.Join(splitRecords(raw), nil), []byte(name)) {
		t.Errorf("%x: name %q is not in the bytes", in, name)
	}
	target, no := (&Transparent{port: 443}).target(name, err)
	if again, why := canonicalName(target.name); no == nil && (again != target.name || why != "" || !strings.EqualFold(name, again)) {
		t.Errorf("%x: target %q of %q", in, target.name, name)
	}
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
