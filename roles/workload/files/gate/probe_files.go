// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"context"
	"fmt"
	"os"
	"strings"
)

func fileProbes() []probe {
	return []probe{
		one("mounts", probeMounts),
		one("root-readonly", probeRoot),
		one("proc-masked", probeMasked),
		one("dev-nodes", probeDevices),
		one("no-sockets", probeNoSockets),
	}
}

// probeRoot tries to create a file in the root: EROFS comes before any question of ownership.
func probeRoot(context.Context, *inside) Check {
	name := "/.asf-probe-" + newNonce()
	f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err == nil {
		f.Close()
		os.Remove(name)
	}
	got := errorWord(err)
	return Check{ID: "root-readonly", Got: got, Verdict: verdictIf(got == "EROFS")}
}

// probeMasked: /proc/sys and its like are read-only mounts, and what engines mask is masked or absent.
func probeMasked(context.Context, *inside) Check {
	list, err := ownMounts()
	if err != nil {
		return Check{ID: "proc-masked", Verdict: inconclusive, Reason: err.Error()}
	}
	state := map[string]string{}
	for name := range maskedProc {
		state[name] = "open"
	}
	state["/proc/sys"], state["/proc/sysrq-trigger"], state["/sys/firmware"] = "open", "open", "open"
	for name := range state {
		if _, err := os.Lstat(name); os.IsNotExist(err) {
			state[name] = "absent"
		}
	}
	for _, m := range list {
		if _, ok := state[m.target]; ok {
			state[m.target] = "masked"
			if readonlyProc[m.target] && m.rw {
				state[m.target] = "writable"
			}
		}
	}
	words, ok := []string{}, true
	for _, name := range sortedKeys(state) {
		words = append(words, name+"="+state[name])
		ok = ok && state[name] != "open" && state[name] != "writable"
	}
	return Check{ID: "proc-masked", Got: strings.Join(words, " "), Verdict: verdictIf(ok)}
}

var harmlessDevices = map[string]bool{
	"null": true, "zero": true, "full": true, "random": true, "urandom": true, "tty": true, "console": true, "ptmx": true,
	"pts": true, "shm": true, "mqueue": true, "fd": true, "stdin": true, "stdout": true, "stderr": true, "core": true,
}

func probeDevices(context.Context, *inside) Check {
	entries, err := os.ReadDir("/dev")
	if err != nil || len(entries) == 0 {
		return Check{ID: "dev-nodes", Verdict: inconclusive, Reason: fmt.Sprintf("nothing read in /dev: %v", err)}
	}
	names, ok := []string{}, true
	for _, e := range entries {
		names = append(names, e.Name())
		ok = ok && harmlessDevices[e.Name()]
	}
	return Check{ID: "dev-nodes", Got: strings.Join(names, " "), Verdict: verdictIf(ok)}
}
