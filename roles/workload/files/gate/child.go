// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
)

const fallbackPath = "/usr/local/bin:/usr/bin:/bin"

// lookPath finds a program in the planned PATH; exec.LookPath would use the gate's own environment.
func lookPath(name, path string) (string, error) {
	if strings.Contains(name, "/") {
		return name, usable(name)
	}
	if path == "" {
		path = fallbackPath
	}
	var denied error
	for _, dir := range strings.Split(path, ":") {
		if !strings.HasPrefix(dir, "/") {
			continue // relative entries would make the meaning depend on the working directory, which an agent writes
		}
		err := usable(dir + "/" + name)
		if err == nil {
			return dir + "/" + name, nil
		}
		if errors.Is(err, fs.ErrPermission) {
			denied = err
		}
	}
	if denied != nil {
		return "", denied
	}
	return "", fmt.Errorf("%s, not in %s: %w", name, path, fs.ErrNotExist)
}

func usable(file string) error {
	info, err := os.Stat(file)
	if err == nil && (info.IsDir() || info.Mode()&0o111 == 0) {
		return &fs.PathError{Op: "execute", Path: file, Err: fs.ErrPermission}
	}
	return err
}

// startFailed turns an error of finding or starting a program into the shell's exit codes.
func startFailed(err error) int {
	if errors.Is(err, fs.ErrNotExist) {
		return complain(exitNotFound, "cannot start: %v", err)
	}
	return complain(exitCannot, "cannot start: %v", err)
}

// startWorkload runs the planned command as the gate's child and stays until it ends. The child has a process group of
// its own, which is the terminal's foreground group when there is a terminal, so that Ctrl-C goes to it and not here.
func startWorkload(p *Plan, token string, signals watched) int {
	limit := newTimeLimit(p.TimeS)
	program, err := lookPath(p.Argv[0], p.Env["PATH"])
	if err != nil {
		return startFailed(err)
	}
	if info, err := os.Stat(p.Cwd); err != nil || !info.IsDir() {
		return complain(exitCannot, "working directory %s: not a directory that can be entered", p.Cwd)
	}
	terminal := controlsTerminal(0)
	pid, err := syscall.ForkExec(program, p.Argv, &syscall.ProcAttr{
		Dir: p.Cwd, Env: p.environment(token), Files: []uintptr{0, 1, 2},
		Sys: &syscall.SysProcAttr{Setpgid: true, Foreground: terminal, Ctty: 0},
	})
	if err != nil {
		return startFailed(&fs.PathError{Op: "start", Path: program, Err: err})
	}
	return attend(pid, terminal, limit, signals)
}

// execRole replaces itself by a command with the planned environment, in the working directory that it was given.
func execRole(args []string, _ atStart) int {
	path, rest, err := planArgs(args)
	if err != nil || len(rest) < 2 || rest[0] != "--" {
		return usage()
	}
	plan, token, code := readInputs(path)
	if plan == nil {
		return code
	}
	if err := harden(); err != nil {
		return complain(exitInternal, "cannot confine itself: %v", err)
	}
	if err := os.Chdir(plan.Cwd); err != nil { // where the workload started; the engine's own is the image's
		return complain(exitCannot, "working directory: %v", err)
	}
	program, err := lookPath(rest[1], plan.Env["PATH"])
	if err != nil {
		return startFailed(err)
	}
	err = syscall.Exec(program, rest[1:], plan.environment(token))
	return startFailed(&fs.PathError{Op: "execute", Path: program, Err: err})
}
