// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestMain keeps Caddy's storage folder away from the home of whoever runs the tests.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "asf-caddy-main")
	if err != nil {
		panic(err)
	}
	for _, name := range []string{"HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"} {
		_ = os.Setenv(name, dir)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

func configFile(t *testing.T, text string) string {
	t.Helper()
	f := filepath.Join(t.TempDir(), "caddy.json")
	if err := os.WriteFile(f, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return f
}

// proxyConfig is a forward proxy that declares one name, or none.
func proxyConfig(addr, name string) string {
	policy := "[]"
	if name != "" {
		policy = fmt.Sprintf(`[{"name":%q,"key":"k"}]`, name)
	}
	return fmt.Sprintf(`{"admin":{"disabled":true,"config":{"persist":false}},
		"logging":{"logs":{"default":{"writer":{"output":"discard"}}}},
		"apps":{"http":{"servers":{"l1":{"listen":[%q],"protocols":["h1"],"automatic_https":{"disable":true},
		"listener_wrappers":[{"wrapper":"asf_guard"}],
		"routes":[{"handle":[{"handler":"asf_connect","policy":%s,"resolver":"127.0.0.99:9","dns_timeout":"100ms"}]}]}}}}}`, addr, policy)
}

// TestCommand: exit codes and output of everything that ends by itself.
func TestCommand(t *testing.T) {
	good := configFile(t, proxyConfig("127.0.0.1:0", "docs.example.com"))
	bad := configFile(t, proxyConfig("127.0.0.1:0", "*.example.com"))
	for _, c := range []struct {
		args   []string
		code   int
		stdout string
	}{
		{nil, exitUsage, ""},
		{[]string{"run"}, exitUsage, ""},
		{[]string{"file-server"}, exitUsage, ""},
		{[]string{"modules"}, exitOK, "http.handlers.asf_connect"},
		{[]string{"version"}, exitOK, "v2."},
		{[]string{"validate", good}, exitOK, ""},
		{[]string{"validate", bad}, exitConfig, "*.example.com"},
		{[]string{"validate", configFile(t, "{")}, exitConfig, "configuration refused"},
		{[]string{"validate", configFile(t, `{"appz":{}}`)}, exitConfig, "appz"},
		{[]string{"run", "/nonexistent/caddy.json"}, exitConfig, "/nonexistent/caddy.json"},
		{[]string{"run", bad}, exitConfig, "configuration refused"},
	} {
		var out, err bytes.Buffer
		if code := command(c.args, &out, &err); code != c.code || !strings.Contains(out.String(), c.stdout) {
			t.Errorf("%v: exit %d, %q, %q", c.args, code, out.String(), err.String())
		}
		if (c.code == exitUsage) != (err.String() == usage+"\n") {
			t.Errorf("%v: stderr %q", c.args, err.String())
		}
		if c.code == exitConfig && !json.Valid(out.Bytes()) {
			t.Errorf("%v: stdout is no JSON line: %q", c.args, out.String())
		}
	}
}

// TestModules: what could serve files, run code or be reached for administration is not in the binary.
func TestModules(t *testing.T) {
	var out bytes.Buffer
	command([]string{"modules"}, &out, &out)
	for _, name := range []string{"http.handlers.file_server", "http.handlers.templates", "http.handlers.reverse_proxy", "http.handlers.forward_proxy",
		"http.handlers.rewrite", "http.reverse_proxy.transport.fastcgi", "http.handlers.acme_server"} {
		if strings.Contains(out.String()+"\n", name+"\n") {
			t.Errorf("%s is in the binary", name)
		}
	}
}

// TestProxyVariables is case P14 for the process.
func TestProxyVariables(t *testing.T) {
	for _, name := range []string{"HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "NO_PROXY"} {
		t.Setenv(name, "http://203.0.113.77:3128")
	}
	command(nil, &bytes.Buffer{}, &bytes.Buffer{})
	for _, pair := range os.Environ() {
		if name, _, _ := strings.Cut(pair, "="); strings.HasSuffix(strings.ToLower(name), "_proxy") {
			t.Errorf("%s is still set", name)
		}
	}
}

// reason asks for a name and returns the refusal's reason, or "" when nobody listens.
func reason(addr string) string {
	c, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return ""
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(5 * time.Second))
	_, _ = fmt.Fprint(c, "CONNECT docs.example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n")
	b := make([]byte, 4096)
	n, _ := c.Read(b)
	_, phrase, _ := strings.Cut(strings.SplitN(string(b[:n]), "\r\n", 2)[0], " ")
	_, phrase, _ = strings.Cut(phrase, " ")
	return phrase
}

func waitReason(t *testing.T, addr, want string) {
	t.Helper()
	var got string
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if got = reason(addr); strings.HasPrefix(got, want) && (got == "") == (want == "") {
			return
		}
	}
	t.Fatalf("%q, want %q", got, want)
}

// TestRun: HUP loads the file again, a file that does not load changes nothing, TERM stops within a second.
func TestRun(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	file := configFile(t, proxyConfig(addr, ""))
	code := make(chan int, 1)
	go func() { code <- command([]string{"run", file}, &bytes.Buffer{}, &bytes.Buffer{}) }()
	waitReason(t, addr, "denied-name")
	for _, step := range []struct{ config, want string }{
		{proxyConfig(addr, "docs.example.com"), "upstream-dns-"},
		{"{", "upstream-dns-"},
		{proxyConfig(addr, ""), "denied-name"},
	} {
		if err := os.WriteFile(file, []byte(step.config), 0o600); err != nil {
			t.Fatal(err)
		}
		_ = syscall.Kill(os.Getpid(), syscall.SIGHUP)
		time.Sleep(300 * time.Millisecond)
		waitReason(t, addr, step.want)
	}
	start := time.Now()
	_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
	select {
	case c := <-code:
		if d := time.Since(start); c != exitOK || d > 2*time.Second {
			t.Errorf("exit %d after %v", c, d)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("TERM does not stop it")
	}
	waitReason(t, addr, "")
}
