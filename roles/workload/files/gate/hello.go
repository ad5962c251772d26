// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"crypto/rand"
	"encoding/binary"
)

// vector is s behind its length in n bytes (RFC 8446 section 3.4).
func vector(n int, s ...[]byte) []byte {
	out := make([]byte, n)
	for _, part := range s {
		out = append(out, part...)
	}
	size := binary.BigEndian.AppendUint32(nil, uint32(len(out)-n))
	copy(out, size[4-n:])
	return out
}

func extension(kind uint16, body []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, kind), vector(2, body)...)
}

func numbers(values ...uint16) []byte {
	var out []byte
	for _, v := range values {
		out = binary.BigEndian.AppendUint16(out, v)
	}
	return out
}

// clientHello is one record that a server of TLS 1.2 or 1.3 answers with its ServerHello (RFC 8446 section 4.1.2). It
// cannot go on from there: package crypto/tls would multiply the gate's size, and nothing but the first answer counts.
func clientHello(name string) []byte {
	random := make([]byte, 32+32+32) // random, session id, and an X25519 share, which any 32 bytes are
	rand.Read(random)
	const x25519, p256 = 0x001d, 0x0017
	extensions := [][]byte{
		extension(0, vector(2, []byte{0}, vector(2, []byte(name)))), // server_name
		extension(10, vector(2, numbers(x25519, p256))),             // supported_groups
		extension(11, vector(1, []byte{0})),                         // ec_point_formats
		extension(13, vector(2, numbers(0x0403, 0x0804, 0x0401, 0x0503, 0x0805, 0x0501, 0x0806, 0x0601, 0x0807))),
		extension(43, vector(1, numbers(0x0304, 0x0303))), // supported_versions
		extension(51, vector(2, numbers(x25519), vector(2, random[64:]))),
	}
	body := append(numbers(0x0303), random[:32]...)
	body = append(body, vector(1, random[32:64])...)
	body = append(body, vector(2, numbers(0x1301, 0x1302, 0x1303, 0xc02b, 0xc02f, 0xc02c, 0xc030, 0xcca9, 0xcca8))...)
	body = append(body, vector(1, []byte{0})...)
	body = append(body, vector(2, extensions...)...)
	return append([]byte{22, 3, 1}, vector(2, []byte{1}, vector(3, body))...)
}
