// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

func TestOneLineIsBoundedAndHarmless(t *testing.T) {
	for in, want := range map[string]string{"plain": "plain", "a\nb\x1b[2J": "a?b?[2J", "\xff": "?", "\u202eabc": "?abc", "日本": "日本"} {
		if got := oneLine(in, 100); got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
	if got := oneLine(strings.Repeat("é", 100), 20); len(got) > 20 || !strings.HasSuffix(got, "...") {
		t.Errorf("%q", got)
	}
}

func TestErrorWord(t *testing.T) {
	for want, err := range map[string]error{"ok": nil, "EPERM": syscall.EPERM, "errno-133": syscall.Errno(133),
		"ENETUNREACH": &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ENETUNREACH)},
		"timeout":     os.ErrDeadlineExceeded, "eof": io.ErrUnexpectedEOF, "error": net.ErrClosed} {
		if got := errorWord(err); got != want {
			t.Errorf("%v: %q", err, got)
		}
	}
}

func TestParseStatus(t *testing.T) {
	s := parseStatus("Name:\tgate\nUid:\t1000\t1000\t1000\t1000\nGid:\t7\t7\t7\t7\nGroups:\t7 9 \nCapInh:\t0\nSeccomp:\t2\n")
	if s["Seccomp"] != "2" || idWords(s) != "uid=1000,1000,1000,1000 gid=7,7,7,7 groups=9" {
		t.Error(s, idWords(s))
	}
	if want := "uid=5,5,5,5 gid=6,6,6,6 groups="; expectedIDs(&Plan{UID: 5, GID: 6}) != want {
		t.Error(expectedIDs(&Plan{UID: 5, GID: 6}))
	}
}

const someMounts = `251 103 0:66 / / ro,relatime - overlay overlay rw,lowerdir=/a:/b
252 251 0:69 / /tmp rw,nosuid - tmpfs tmpfs rw,size=16384k
253 251 0:71 / /sys ro - sysfs sysfs rw
254 251 0:71 / /proc rw master:5 - proc proc rw
255 254 0:72 /sys /proc/sys ro shared:1 master:2 - proc proc rw
256 251 254:0 /src /workspace/repos/a\040b rw - ext4 /dev/vda ro,errors=x
257 251 254:0 /t /run/secrets/tok ro - ext4 /dev/vda rw
258 251 0:5 /null /dev/null rw - devtmpfs devtmpfs rw`

func TestParseMounts(t *testing.T) {
	list, err := parseMounts(someMounts)
	if err != nil || len(list) != 8 {
		t.Fatal(list, err)
	}
	if want := (mountEntry{"/workspace/repos/a b", "ext4", false}); list[5] != want {
		t.Error("a read-only super block makes a read-only mount:", list[5])
	}
	if list[0].word() != "/,overlay,ro" || list[5].word() != `/workspace/repos/a\040b,ext4,ro` {
		t.Error(list[0].word(), list[5].word())
	}
	for _, bad := range []string{"", "1 2 3", "1 2 3 / / rw ext4"} {
		if _, err := parseMounts(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestPathsSurviveTheirSpelling(t *testing.T) {
	for _, p := range []string{"/plain", "/a b", "/a,b", `/a\b`, "/a\nb\tc", "/é", `/\040`, "/-x=y"} {
		e := escapePath(p)
		if unescapePath(e) != p || strings.ContainsAny(e, " \n\t,") {
			t.Errorf("%q -> %q -> %q", p, e, unescapePath(e))
		}
	}
}

func TestJudgeMounts(t *testing.T) {
	plan := func(m ...Mount) *Plan { return &Plan{TokenFile: "/run/secrets/tok", Probes: Probes{Mounts: m}} }
	tmp, repo := Mount{"/tmp", "tmpfs", true}, Mount{"/workspace/repos/a b", "", false}
	for name, c := range map[string]struct {
		plan  *Plan
		extra string
		want  []string
	}{
		"as planned":     {plan(tmp, repo), "", []string{}},
		"unplanned":      {plan(repo), "", []string{"unplanned rw: /tmp,tmpfs,rw"}},
		"not writable":   {plan(tmp, Mount{"/workspace/repos/a b", "", true}), "", []string{`differs: /workspace/repos/a\040b,ext4,ro`}},
		"other type":     {plan(Mount{"/tmp", "ext4", true}, repo), "", []string{"differs: /tmp,tmpfs,rw"}},
		"missing":        {plan(tmp, repo, Mount{"/x", "", false}), "", []string{"missing: /x"}},
		"extra rw":       {plan(tmp, repo), "\n9 8 1:1 / /mnt rw - ext4 x rw", []string{"unplanned rw: /mnt,ext4,rw"}},
		"extra ro":       {plan(tmp, repo), "\n9 8 1:1 / /mnt ro - ext4 x rw", []string{"unplanned: /mnt,ext4,ro"}},
		"hides a ro one": {plan(tmp, repo), "\n9 8 1:1 / /proc/sys rw - proc x rw", []string{"unplanned rw: /proc/sys,proc,rw"}},
	} {
		list, err := parseMounts(someMounts + c.extra)
		if got := judgeMounts(list, c.plan); err != nil || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
}

// routeMessage builds one RTM_NEWROUTE as the kernel sends it.
func routeMessage(family, length, table, kind byte, attrs map[uint16][]byte) []byte {
	body := []byte{family, length, 0, 0, table, 2, 0, kind, 0, 0, 0, 0}
	for _, id := range []uint16{syscall.RTA_DST, syscall.RTA_OIF, syscall.RTA_GATEWAY, syscall.RTA_MULTIPATH, rtaTable} {
		if v, ok := attrs[id]; ok {
			a := binary.NativeEndian.AppendUint16(nil, uint16(4+len(v)))
			a = append(binary.NativeEndian.AppendUint16(a, id), v...)
			body = append(body, append(a, make([]byte, (4-len(a)%4)%4)...)...)
		}
	}
	head := binary.NativeEndian.AppendUint32(nil, uint32(16+len(body)))
	head = binary.NativeEndian.AppendUint16(head, syscall.RTM_NEWROUTE)
	return append(append(head, make([]byte, 10)...), body...)
}

func TestParseRoutes(t *testing.T) {
	u32 := func(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
	dst := func(s string) []byte { return net.ParseIP(s).To4() }
	raw := bytes.Join([][]byte{
		routeMessage(2, 32, 254, syscall.RTN_UNICAST, map[uint16][]byte{syscall.RTA_DST: dst("198.18.0.1"), syscall.RTA_OIF: u32(2)}),
		routeMessage(2, 0, 254, syscall.RTN_UNICAST, map[uint16][]byte{syscall.RTA_GATEWAY: dst("10.0.0.1"), syscall.RTA_OIF: u32(3)}),
		routeMessage(10, 0, 252, syscall.RTN_UNICAST, map[uint16][]byte{rtaTable: u32(1000)}),
		routeMessage(2, 32, 255, syscall.RTN_LOCAL, map[uint16][]byte{syscall.RTA_DST: dst("198.18.0.2")}),
		routeMessage(2, 32, 254, syscall.RTN_LOCAL, map[uint16][]byte{syscall.RTA_DST: dst("198.18.0.9")}),
		routeMessage(2, 24, 254, syscall.RTN_UNICAST, map[uint16][]byte{syscall.RTA_DST: dst("10.1.1.0"), syscall.RTA_MULTIPATH: u32(0)}),
	}, nil)
	routes, own, err := parseRoutes(raw)
	got := []string{}
	for _, r := range routes {
		got = append(got, r.word())
	}
	want := []string{"198.18.0.1/32,via:-,dev:2,table:254", "0.0.0.0/0,via:10.0.0.1,dev:3,table:254",
		"::/0,via:-,dev:0,table:1000", "198.18.0.9/32,via:-,dev:0,table:254", "10.1.1.0/24,via:other,dev:0,table:254"}
	if err != nil || own != 1 || !reflect.DeepEqual(got, want) {
		t.Errorf("%q %d %v", got, own, err)
	}
}

func TestReadAnswer(t *testing.T) {
	for text, want := range map[string]string{
		"HTTP/1.1 200 OK\r\n\r\n": "200",
		"HTTP/1.1 403 Denied by ASF\r\nX-Asf-Proxy: denied-name\r\n\r\n":        "403:denied-name",
		"HTTP/1.0 502 x\r\nx-asf-proxy: upstream timeout\r\n\r\nbody":           "502:upstream_timeout",
		"HTTP/1.1 204\r\nX-Asf-Proxy: " + strings.Repeat("a", 200) + "\r\n\r\n": "204:" + strings.Repeat("a", 77) + "...",
		"":                            "!eof",
		"SSH-2.0-x\r\n":               "!error",
		"HTTP/1.1 abc\r\n\r\n":        "!error",
		"HTTP/1.1 20\r\n\r\n":         "!error",
		"HTTP/1.1 200 OK\r\nno colon": "!error",
		"HTTP/1.1 200 OK\r\nA: b\r\n": "!eof",
		"HTTP/2 200\r\n\r\n":          "!error",
	} {
		a, err := readAnswer(strings.NewReader(text))
		got := a.word("X-Asf-Proxy")
		if err != nil {
			got = "!" + errorWord(err)
		}
		if got != want {
			t.Errorf("%q: %q (%v)", text, got, err)
		}
	}
}

func FuzzReadAnswer(f *testing.F) {
	f.Add([]byte("HTTP/1.1 403 Denied\r\nX-Asf-Proxy: denied-name\r\n\r\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if a, err := readAnswer(bytes.NewReader(raw)); err == nil && strings.ContainsAny(a.word("X-Asf-Proxy"), " \r\n\x1b") {
			t.Errorf("%q", a.word("X-Asf-Proxy"))
		}
	})
}

func FuzzParseMounts(f *testing.F) {
	f.Add(someMounts)
	f.Fuzz(func(t *testing.T, text string) {
		list, err := parseMounts(text)
		if err == nil {
			judgeMounts(list, &Plan{})
		}
	})
}
