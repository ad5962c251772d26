// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

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
