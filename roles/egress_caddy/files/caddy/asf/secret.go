// SPDX-License-Identifier: BSD-4-Clause

package asf

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
)

const (
	minSecret = 16
	maxSecret = 512
)

// readSecret reads a mounted secret once, at start. It fails closed: a missing, empty, short or odd file is an error,
// so the front is not served at all. One final line break is the file's, not the secret's (case S2). The error never
// holds a byte of the file.
func readSecret(key, path string) (string, error) {
	if path == "" {
		return "", fmt.Errorf("%s: no file is named", key)
	}
	f, err := os.Open(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", key, err)
	}
	defer func() { _ = f.Close() }()
	b, err := io.ReadAll(io.LimitReader(f, maxSecret+3))
	if err != nil {
		return "", fmt.Errorf("%s: %w", key, err)
	}
	s := strings.TrimSuffix(strings.TrimSuffix(string(b), "\n"), "\r")
	if len(s) < minSecret || len(s) > maxSecret {
		return "", fmt.Errorf("%s: %s holds %d bytes; a secret has %d to %d", key, path, len(s), minSecret, maxSecret)
	}
	for _, c := range []byte(s) {
		if !tokenByte(c) {
			return "", fmt.Errorf("%s: %s holds a byte that cannot stand in a header token", key, path)
		}
	}
	return s, nil
}

// tokenByte is token68 of RFC 9110 section 11.2: what may follow "Bearer ".
func tokenByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-._~+/=", c) >= 0
}

// credential is a secret to compare with: its digest, so that comparing takes the same time for any guess.
type credential [sha256.Size]byte

func newCredential(secret string) credential { return sha256.Sum256([]byte(secret)) }

func (c credential) matches(guess string) bool {
	sum := sha256.Sum256([]byte(guess))
	return subtle.ConstantTimeCompare(sum[:], c[:]) == 1
}

// authorized accepts the session token as "Authorization: Bearer TOKEN" or as "x-api-key: TOKEN". A header that is
// given twice, or two headers that differ, are refused: no two readers could disagree on which one counts.
func (c credential) authorized(h http.Header) bool {
	bearer, key := h.Values("Authorization"), h.Values("X-Api-Key")
	if len(bearer) > 1 || len(key) > 1 || len(bearer)+len(key) == 0 {
		return false
	}
	ok := true
	if len(bearer) == 1 {
		scheme, token, found := strings.Cut(bearer[0], " ")
		ok = c.matches(token) && found && strings.EqualFold(scheme, "bearer")
	}
	if len(key) == 1 {
		ok = c.matches(key[0]) && ok
	}
	return ok
}
