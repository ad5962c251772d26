// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"context"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
)

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
