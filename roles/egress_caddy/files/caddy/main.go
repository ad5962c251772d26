// SPDX-License-Identifier: BSD-4-Clause

// Command caddy is the sandbox's Caddy: the HTTP server, JSON logs and the modules of package asf, without Caddy's
// command line, Caddyfile, admin endpoint and file server.
//
//	caddy run FILE       serve the JSON configuration; SIGHUP loads FILE again, SIGTERM and SIGINT stop
//	caddy validate FILE  provision the configuration, secrets included, without serving it
//	caddy modules        list the modules in this binary
//	caddy version
//
// Build, reproducibly (same digest from any folder):
//
//	CGO_ENABLED=0 GOFLAGS=-mod=readonly go build -trimpath -buildvcs=false -ldflags '-s -w' -o caddy .
//
// Run it with HOME on a tmpfs (HOME=/tmp): Caddy's storage folder is made there, and nowhere else.
package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"asf.sandbox/caddy/asf"
	"github.com/caddyserver/caddy/v2"
	_ "github.com/caddyserver/caddy/v2/modules/caddyhttp"
	_ "github.com/caddyserver/caddy/v2/modules/logging"
	"go.uber.org/zap"
)

const (
	exitOK     = 0
	exitUsage  = 64 // EX_USAGE of sysexits.h
	exitConfig = 78 // EX_CONFIG

	stopDeadline = 400 * time.Millisecond
)

const usage = "usage: caddy run FILE | validate FILE | modules | version"

func main() {
	os.Exit(command(os.Args[1:], os.Stdout, os.Stderr))
}

func command(args []string, stdout, stderr io.Writer) int {
	dropProxyVariables()
	switch {
	case len(args) == 2 && args[0] == "run":
		return run(args[1], stdout)
	case len(args) == 2 && args[0] == "validate":
		return validate(args[1], stdout)
	case len(args) == 1 && args[0] == "modules":
		_, _ = fmt.Fprintln(stdout, strings.Join(caddy.Modules(), "\n"))
		return exitOK
	case len(args) == 1 && args[0] == "version":
		simple, _ := caddy.Version()
		_, _ = fmt.Fprintln(stdout, simple)
		return exitOK
	}
	_, _ = fmt.Fprintln(stderr, usage)
	return exitUsage
}

// dropProxyVariables makes sure that no part of Caddy can be sent through a proxy by the environment (case P14).
func dropProxyVariables() {
	for _, name := range []string{"http_proxy", "https_proxy", "all_proxy", "no_proxy"} {
		_ = os.Unsetenv(name)
		_ = os.Unsetenv(strings.ToUpper(name))
	}
}

// load returns the SHA-256 of what it has read, which is what then decides, or does not.
func load(file string) (digest string, err error) {
	config, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", sha256.Sum256(config)), caddy.Load(config, true)
}

// run serves until it is told to stop. A configuration that does not load at start is fatal; one that does not load
// later leaves the running one in place.
func run(file string, stdout io.Writer) int {
	signals := make(chan os.Signal, 4)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP)
	if _, err := load(file); err != nil {
		report(stdout, file, err)
		return exitConfig
	}
	for s := range signals {
		if s == syscall.SIGHUP {
			reload(file)
			continue
		}
		stop()
		return exitOK
	}
	return exitOK
}

func reload(file string) {
	digest, err := load(file)
	log := caddy.Log().Named("asf")
	if err != nil {
		log.Error("reload refused, the running configuration stays", zap.String("file", file), zap.String("sha256", digest), zap.Error(err))
		return
	}
	log.Info("reloaded", zap.String("file", file), zap.String("sha256", digest))
}

// stop cuts tunnels and streams first, so that Caddy has nothing to wait for, and never takes longer than a second.
func stop() {
	asf.Shutdown()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = caddy.Stop()
	}()
	select {
	case <-done:
	case <-time.After(stopDeadline):
	}
	asf.Flush() // what was refused since
}

func validate(file string, stdout io.Writer) int {
	raw, err := os.ReadFile(file)
	if err == nil {
		var config *caddy.Config
		if err = caddy.StrictUnmarshalJSON(raw, &config); err == nil {
			err = caddy.Validate(config)
		}
	}
	if err != nil {
		report(stdout, file, err)
		return exitConfig
	}
	return exitOK
}

// report writes a line of the log's own shape: until a configuration is loaded there is no JSON logger.
func report(w io.Writer, file string, err error) {
	line, _ := json.Marshal(map[string]any{
		"level": "error", "ts": float64(time.Now().UnixMilli()) / 1000, "logger": "asf",
		"msg": "configuration refused", "file": file, "error": err.Error(),
	})
	_, _ = fmt.Fprintln(w, string(line))
}
