// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
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

// mountEntry is one line of /proc/self/mountinfo.
type mountEntry struct {
	target, kind string
	rw           bool
}

func (m mountEntry) word() string {
	mode := "ro"
	if m.rw {
		mode = "rw"
	}
	return fmt.Sprintf("%s,%s,%s", escapePath(m.target), m.kind, mode)
}

// parseMounts reads mountinfo (proc(5)). A mount is read-only when the mount or its super block is.
func parseMounts(text string) ([]mountEntry, error) {
	list := []mountEntry{}
	for _, line := range strings.Split(strings.TrimSpace(text), "\n") {
		before, after, ok := strings.Cut(line, " - ")
		front, back := strings.Fields(before), strings.Fields(after)
		if !ok || len(front) < 6 || len(back) < 1 {
			return nil, fmt.Errorf("mountinfo: %q", line)
		}
		super := ""
		if len(back) > 2 {
			super = back[len(back)-1]
		}
		rw := hasOption(front[5], "rw") && !hasOption(super, "ro")
		list = append(list, mountEntry{unescapePath(front[4]), back[0], rw})
	}
	return list, nil
}

func hasOption(options, name string) bool {
	for _, o := range strings.Split(options, ",") {
		if o == name {
			return true
		}
	}
	return false
}

// escapePath makes a path one word of ASCII: octal for everything else, as mountinfo does for blanks.
func escapePath(p string) string {
	var b strings.Builder
	for _, c := range []byte(p) {
		if c <= ' ' || c == '\\' || c == ',' || c > '~' {
			fmt.Fprintf(&b, `\%03o`, c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

var octal = regexp.MustCompile(`\\[0-3][0-7]{2}`)

func unescapePath(p string) string {
	return octal.ReplaceAllStringFunc(p, func(o string) string {
		n, _ := strconv.ParseUint(o[1:], 8, 8)
		return string([]byte{byte(n)})
	})
}

// Mounts that every engine makes by itself. The root, /sys and the files of /etc and /run must be read-only.
var (
	engineRW = map[string]bool{"/proc": true, "/dev": true, "/dev/pts": true, "/dev/mqueue": true, "/dev/console": true,
		"/dev/null": true, "/dev/zero": true, "/dev/full": true, "/dev/random": true, "/dev/urandom": true,
		"/dev/tty": true}
	engineRO = map[string]bool{"/": true, "/etc/passwd": true, "/etc/group": true, "/sys": true, "/sys/fs/cgroup": true, "/etc/hosts": true, "/etc/hostname": true,
		"/etc/resolv.conf": true, "/run/.containerenv": true, "/run/secrets": true, "/asf/gate": true,
		defaultPlan: true}
	maskedProc = map[string]bool{"/proc/acpi": true, "/proc/kcore": true, "/proc/keys": true, "/proc/latency_stats": true,
		"/proc/timer_list": true, "/proc/timer_stats": true, "/proc/sched_debug": true, "/proc/scsi": true}
	readonlyProc = map[string]bool{"/proc/asound": true, "/proc/bus": true, "/proc/fs": true, "/proc/irq": true,
		"/proc/sys": true, "/proc/sysrq-trigger": true}
)

// judgeMounts compares the kernel's list with the plan's and returns what is wrong.
func judgeMounts(list []mountEntry, p *Plan) []string {
	planned := map[string]Mount{}
	for _, m := range p.Probes.Mounts {
		planned[m.Target] = m
	}
	problems, seen := []string{}, map[string]bool{}
	for _, m := range list {
		seen[m.target] = true
		if want, ok := planned[m.target]; ok {
			if want.RW != m.rw || (want.Type != "" && want.Type != m.kind) {
				problems = append(problems, "differs: "+m.word())
			}
		} else if m.rw && !engineRW[m.target] && !maskedProc[m.target] {
			problems = append(problems, "unplanned rw: "+m.word())
		} else if !m.rw && !engineMount(m.target, p.TokenFile) {
			problems = append(problems, "unplanned: "+m.word())
		}
	}
	for _, target := range sortedKeys(planned) {
		if !seen[target] {
			problems = append(problems, "missing: "+escapePath(target))
		}
	}
	return problems
}

func engineMount(target, tokenFile string) bool {
	return engineRW[target] || engineRO[target] || maskedProc[target] || readonlyProc[target] || target == tokenFile ||
		strings.HasPrefix(target, "/sys/")
}

func ownMounts() ([]mountEntry, error) {
	text, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	return parseMounts(string(text))
}

func probeMounts(_ context.Context, in *inside) Check {
	list, err := ownMounts()
	if err != nil || len(list) == 0 {
		return Check{ID: "mounts", Verdict: inconclusive, Reason: fmt.Sprintf("no mounts read: %v", err)}
	}
	words := []string{}
	for _, m := range list {
		words = append(words, m.word())
	}
	problems := judgeMounts(list, in.plan)
	return Check{ID: "mounts", Got: strings.Join(words, " "), Verdict: verdictIf(len(problems) == 0),
		Reason: strings.Join(problems, "; ")}
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

// Sockets that would hand a container to its host: engines, message bus, display.
var hostSockets = []string{"/run/podman/podman.sock", "/var/run/docker.sock", "/run/docker.sock", "/run/crio/crio.sock",
	"/run/containerd/containerd.sock", "/run/buildkit/buildkitd.sock", "/run/dbus/system_bus_socket", "/tmp/.X11-unix/X0"}

// probeNoSockets looks at the known places, walks /run (read-only, so the workload puts nothing there), and, before the
// workload runs, at the abstract names of the network namespace.
func probeNoSockets(ctx context.Context, in *inside) Check {
	found := []string{}
	uid := fmt.Sprint(in.plan.UID)
	paths := append(append([]string{}, hostSockets...), in.plan.Probes.Gone...)
	for _, p := range append(paths, "/run/user/"+uid+"/podman/podman.sock", "/run/user/"+uid+"/bus") {
		if _, err := os.Lstat(p); !os.IsNotExist(err) && errorWord(err) != "ENOTDIR" {
			found = append(found, p+"="+errorWord(err))
		}
	}
	walked := walkSockets(ctx, "/run", 5000)
	if walked == nil {
		return Check{ID: "no-sockets", Verdict: inconclusive, Reason: "/run could not be walked"}
	}
	found = append(found, walked...)
	if in.role == "run" {
		names, err := abstractSockets("@" + in.plan.Socket)
		if err != nil {
			return Check{ID: "no-sockets", Verdict: inconclusive, Reason: err.Error()}
		}
		found = append(found, names...)
	}
	got := strings.Join(append([]string{fmt.Sprintf("found=%d", len(found))}, found...), " ")
	return Check{ID: "no-sockets", Got: got, Verdict: verdictIf(len(found) == 0)}
}

// walkSockets returns the sockets below root, or nil when it met more than limit entries or could not begin.
func walkSockets(ctx context.Context, root string, limit int) []string {
	found, count := []string{}, 0
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if count++; count > limit || ctx.Err() != nil {
			return fs.ErrInvalid
		}
		if err != nil {
			if name == root && !os.IsNotExist(err) {
				return err
			}
			return nil // a folder that this uid cannot read holds no socket that it can reach
		}
		if d.Type()&fs.ModeSocket != 0 {
			found = append(found, escapePath(path.Clean(name)))
		}
		return nil
	})
	if err != nil {
		return nil
	}
	return found
}

// abstractSockets lists the abstract names in this network namespace except the gate's own.
func abstractSockets(own string) ([]string, error) {
	text, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	names := []string{}
	for _, line := range strings.Split(string(text), "\n") {
		f := strings.Fields(line)
		if len(f) > 7 && strings.HasPrefix(f[7], "@") && f[7] != own {
			names = append(names, f[7])
		}
	}
	return names, nil
}
