// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"unicode"
)

// Verdicts. They are the gate's own opinion: the host decides again from Got.
const (
	pass         = "pass"
	fail         = "fail"
	inconclusive = "inconclusive"
	warn         = "warn"
)

const (
	maxGot    = 24 << 10 // a route for each of the most rules a manifest may have, and for each public range
	maxReason = 300
)

// Check is one probe's answer. Got is words of the form "key=value" or a single word, so that the host can judge it.
type Check struct {
	ID        string `json:"id"`
	Invariant int    `json:"invariant"`
	Expect    string `json:"expect"`
	Got       string `json:"got"`
	Verdict   string `json:"verdict"`
	Reason    string `json:"reason"`
}

// Report is what the gate says to the host, as one line of JSON.
type Report struct {
	Version    int     `json:"version"`
	PID        int     `json:"pid"`
	Nonce      string  `json:"nonce"`
	PlanDigest string  `json:"plan_digest"`
	Micros     int64   `json:"us"`
	Checks     []Check `json:"checks"`
}

func newNonce() string {
	b := make([]byte, 16)
	if _, err := rand.Read(b); err != nil {
		panic(err) // getrandom does not fail once the kernel's pool is up
	}
	return hex.EncodeToString(b)
}

func (r *Report) line() []byte {
	b, err := json.Marshal(r)
	if err != nil {
		panic(err) // only strings and integers
	}
	return append(b, '\n')
}

// oneLine bounds s and replaces what could move a cursor or end a line.
func oneLine(s string, limit int) string {
	s = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > limit {
		s = strings.ToValidUTF8(s[:limit-3], "") + "..."
	}
	return s
}

func verdictIf(ok bool) string {
	if ok {
		return pass
	}
	return fail
}

var errnoNames = map[syscall.Errno]string{
	syscall.EPERM: "EPERM", syscall.ENOENT: "ENOENT", syscall.EIO: "EIO", syscall.E2BIG: "E2BIG", syscall.EBADF: "EBADF",
	syscall.EAGAIN: "EAGAIN", syscall.ENOMEM: "ENOMEM", syscall.EACCES: "EACCES", syscall.EFAULT: "EFAULT",
	syscall.EEXIST: "EEXIST", syscall.ENOTDIR: "ENOTDIR", syscall.EINVAL: "EINVAL", syscall.ENFILE: "ENFILE",
	syscall.EMFILE: "EMFILE", syscall.ENOSPC: "ENOSPC", syscall.EROFS: "EROFS", syscall.EPIPE: "EPIPE",
	syscall.ENOSYS: "ENOSYS", syscall.EPROTO: "EPROTO", syscall.EPROTONOSUPPORT: "EPROTONOSUPPORT",
	syscall.ESOCKTNOSUPPORT: "ESOCKTNOSUPPORT", syscall.EOPNOTSUPP: "EOPNOTSUPP", syscall.EAFNOSUPPORT: "EAFNOSUPPORT",
	syscall.EADDRINUSE: "EADDRINUSE", syscall.EADDRNOTAVAIL: "EADDRNOTAVAIL", syscall.ENETDOWN: "ENETDOWN",
	syscall.ENETUNREACH: "ENETUNREACH", syscall.ECONNRESET: "ECONNRESET", syscall.ENOBUFS: "ENOBUFS",
	syscall.ETIMEDOUT: "ETIMEDOUT", syscall.ECONNREFUSED: "ECONNREFUSED", syscall.EHOSTUNREACH: "EHOSTUNREACH",
	syscall.EHOSTDOWN: "EHOSTDOWN", syscall.ENOKEY: "ENOKEY",
}

// errorWord names an error in one word: an errno's name, "timeout", "eof", or "error"; nil is "ok".
func errorWord(err error) string {
	var errno syscall.Errno
	var timeout net.Error
	switch {
	case err == nil:
		return "ok"
	case errors.As(err, &errno):
		if name, ok := errnoNames[errno]; ok {
			return name
		}
		return fmt.Sprintf("errno-%d", int(errno))
	case errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	case strings.HasSuffix(err.Error(), "EOF"):
		return "eof"
	}
	return "error"
}
