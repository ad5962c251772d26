// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"syscall"
)

func processProbes(in *inside) []probe {
	list := []probe{
		one("pid1-opaque", probeOpaque),
		statusProbe("seccomp-mode", func(*Plan) string { return "2" }, field("Seccomp")),
		statusProbe("no-new-privs", func(*Plan) string { return "1" }, field("NoNewPrivs")),
		statusProbe("caps", expectedCaps, capWords),
		statusProbe("uid-gid", expectedIDs, idWords),
		one("namespaces", probeNamespaces),
		one("fds", probeDescriptors),
		one("core-limit", probeCore),
		one("environ", probeEnviron),
	}
	if in.role == "run" {
		list = append(list, one("pid1", probePID))
	}
	return list
}

// parseStatus splits /proc/PID/status into its fields.
func parseStatus(text string) map[string]string {
	fields := map[string]string{}
	for _, line := range strings.Split(text, "\n") {
		if key, value, ok := strings.Cut(line, ":"); ok {
			fields[key] = strings.TrimSpace(value)
		}
	}
	return fields
}

// statusProbe compares words made of /proc/self/status with what the plan expects.
func statusProbe(id string, want func(*Plan) string, got func(map[string]string) string) probe {
	return one(id, func(_ context.Context, in *inside) Check {
		text, err := os.ReadFile("/proc/self/status")
		if err != nil {
			return Check{ID: id, Verdict: inconclusive, Reason: err.Error()}
		}
		g := got(parseStatus(string(text)))
		return Check{ID: id, Got: g, Verdict: verdictIf(g == want(in.plan))}
	})
}

func field(name string) func(map[string]string) string {
	return func(s map[string]string) string { return s[name] }
}

var capSets = []string{"Inh", "Prm", "Eff", "Bnd", "Amb"}

func capWords(s map[string]string) string {
	words := []string{}
	for _, set := range capSets {
		words = append(words, strings.ToLower(set)+"="+s["Cap"+set])
	}
	return strings.Join(words, " ")
}

func expectedCaps(p *Plan) string {
	s := map[string]string{}
	for _, set := range capSets {
		s["Cap"+set] = p.Caps
	}
	return capWords(s)
}

// idWords leaves the primary group out of the supplementary ones: engines differ in listing it there.
func idWords(s map[string]string) string {
	comma := func(v string) string { return strings.Join(strings.Fields(v), ",") }
	gid, _, _ := strings.Cut(comma(s["Gid"]), ",")
	extra := []string{}
	for _, g := range strings.Fields(s["Groups"]) {
		if g != gid {
			extra = append(extra, g)
		}
	}
	return fmt.Sprintf("uid=%s gid=%s groups=%s", comma(s["Uid"]), comma(s["Gid"]), strings.Join(extra, ","))
}

func expectedIDs(p *Plan) string {
	four := func(id int) string { return strings.TrimSuffix(strings.Repeat(fmt.Sprintf("%d,", id), 4), ",") }
	return fmt.Sprintf("uid=%s gid=%s groups=", four(p.UID), four(p.GID))
}

func probePID(context.Context, *inside) Check {
	return Check{ID: "pid1", Got: fmt.Sprint(os.Getpid()), Verdict: verdictIf(os.Getpid() == 1)}
}

// probeOpaque: PID 1 asks the kernel about itself; a fresh exec tries what the workload would try.
func probeOpaque(_ context.Context, in *inside) Check {
	c := Check{ID: "pid1-opaque"}
	if in.role == "run" {
		r, _, e := syscall.RawSyscall(syscall.SYS_PRCTL, prGetDumpable, 0, 0)
		if e != 0 {
			return Check{ID: c.ID, Verdict: inconclusive, Reason: e.Error()}
		}
		c.Got = fmt.Sprintf("dumpable=%d", r)
		c.Verdict = verdictIf(r == 0)
		return c
	}
	try := func(name string) string {
		f, err := os.Open("/proc/1/" + name)
		if err == nil {
			f.Close()
		}
		return errorWord(err)
	}
	c.Got = fmt.Sprintf("environ=%s mem=%s", try("environ"), try("mem"))
	c.Verdict = verdictIf(c.Got == "environ=EACCES mem=EACCES")
	return c
}

// Inode numbers that the kernel gives the initial namespaces (include/linux/proc_ns.h).
var initialNamespaces = map[string]string{
	"user": "user:[4026531837]", "pid": "pid:[4026531836]", "ipc": "ipc:[4026531839]", "uts": "uts:[4026531838]",
}

func probeNamespaces(context.Context, *inside) Check {
	c := Check{ID: "namespaces", Verdict: pass}
	words := []string{}
	for _, kind := range []string{"user", "pid", "ipc", "uts", "net", "mnt", "cgroup"} {
		link, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			return Check{ID: c.ID, Verdict: inconclusive, Reason: err.Error()}
		}
		if link == initialNamespaces[kind] {
			c.Verdict, c.Reason = fail, kind+" namespace is the initial one"
		}
		words = append(words, kind+"="+strings.Trim(strings.TrimPrefix(link, kind), ":[]"))
	}
	c.Got = strings.Join(words, " ")
	return c
}

func probeDescriptors(_ context.Context, in *inside) Check {
	if in.at.fdsErr != nil {
		return Check{ID: "fds", Verdict: inconclusive, Reason: in.at.fdsErr.Error()}
	}
	return Check{ID: "fds", Got: strings.Join(append([]string{"more=" + fmt.Sprint(len(in.at.fds))}, in.at.fds...), " "),
		Verdict: verdictIf(len(in.at.fds) == 0)}
}

func probeCore(_ context.Context, in *inside) Check {
	if in.at.coreErr != nil {
		return Check{ID: "core-limit", Verdict: inconclusive, Reason: in.at.coreErr.Error()}
	}
	return Check{ID: "core-limit", Got: fmt.Sprintf("soft=%d hard=%d", in.at.core.Cur, in.at.core.Max),
		Verdict: verdictIf(in.at.core.Cur == 0 && in.at.core.Max == 0)}
}

// engineEnv are the names that an engine or ASF's images set themselves. Values are the plan's business: they never
// hold a secret, because neither token nor plan is passed by the environment.
var engineEnv = map[string]bool{
	"PATH": true, "HOME": true, "HOSTNAME": true, "TERM": true, "container": true, "LANG": true,
}

func probeEnviron(_ context.Context, in *inside) Check {
	c := Check{ID: "environ", Verdict: pass}
	names := []string{}
	for _, entry := range in.at.environ {
		name, _, _ := strings.Cut(entry, "=")
		names = append(names, name)
		if !engineEnv[name] {
			c.Verdict, c.Reason = fail, "unplanned variable "+name
		}
	}
	c.Got = strings.Join(names, " ")
	return c
}
