// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// running is a gate that was started as a process of its own, with its plan's socket.
type running struct {
	*exec.Cmd
	t        *testing.T
	plan     *Plan
	out, err *lines
}

func runGate(t *testing.T, p *Plan) *running {
	t.Helper()
	r := &running{gate("run", "--plan", writePlan(t, p)), t, p, &lines{}, &lines{}}
	r.Stdout, r.Stderr = r.out, r.err
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Process.Kill() })
	return r
}

// order waits for the report and answers it; it returns the report and the gate's reply.
func (r *running) order(word string) (Report, string) {
	r.t.Helper()
	var c net.Conn
	var err error
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if c, err = net.Dial("unix", "@"+r.plan.Socket); err == nil {
			break
		}
	}
	if err != nil {
		r.t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	in := bufio.NewReader(c)
	line, err := in.ReadBytes('\n')
	var report Report
	if err != nil || json.Unmarshal(line, &report) != nil {
		r.t.Fatalf("no report: %q %v", line, err)
	}
	c.Write([]byte(strings.ReplaceAll(word, "NONCE", report.Nonce) + "\n"))
	reply, _ := in.ReadString('\n')
	return report, strings.TrimSpace(reply)
}

// end waits for the gate's exit code.
func (r *running) end() int {
	r.t.Helper()
	done := make(chan error, 1)
	go func() { done <- r.Wait() }()
	select {
	case err := <-done:
		return exitOf(r.t, err)
	case <-time.After(20 * time.Second):
		r.t.Fatal("the gate does not end")
		return -1
	}
}

func (r *running) says(word string) {
	r.t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if strings.Contains(r.out.String(), word) {
			return
		}
	}
	r.t.Fatalf("the workload does not say %q", word)
}

func TestRunStartsTheWorkloadOnGoAndPassesItsExitCode(t *testing.T) {
	r := runGate(t, goodPlan(t, "sh", "-c", "echo ran; exit 7"))
	report, reply := r.order("go NONCE")
	if reply != "ok" || r.end() != 7 || r.out.String() != "ran\n" {
		t.Errorf("%q %q %q", reply, r.out, r.err)
	}
	if report.PlanDigest != "abc" || report.Version != 1 || report.PID != r.Process.Pid || len(report.Nonce) != 32 {
		t.Errorf("%+v", report)
	}
	for _, c := range report.Checks { // this process is not confined: the probes must say so
		if (c.ID == "sys-unshare" || c.ID == "clone-newuser" || c.ID == "seccomp-mode") && c.Verdict == pass {
			t.Errorf("passes without any filter: %+v", c)
		}
	}
}

// S7: nothing of the gate's own environment reaches the workload, the token does.
func TestRunGivesThePlannedEnvironmentAndNothingElse(t *testing.T) {
	p := goodPlan(t, "/usr/bin/env")
	p.Env["X"], p.TokenEnv = "a b=c", []string{"TOKEN"}
	p.TokenFile = writeFile(t, "token", "s3cret\n", 0o600)
	r := runGate(t, p)
	r.order("go NONCE")
	if code := r.end(); code != 0 || r.out.String() != "PATH=/usr/bin:/bin\nTOKEN=s3cret\nX=a b=c\n" {
		t.Errorf("exit %d: %q %q", code, r.out, r.err)
	}
}

func TestRunForwardsSignals(t *testing.T) {
	r := runGate(t, goodPlan(t, "sh", "-c", `trap 'echo usr1' USR1; trap 'echo term; exit 5' TERM; echo up; while :; do sleep 0.01; done`))
	r.order("go NONCE")
	r.says("up")
	r.Process.Signal(syscall.SIGUSR1)
	r.says("usr1")
	r.Process.Signal(syscall.SIGTERM)
	if code := r.end(); code != 5 || !strings.Contains(r.out.String(), "term") {
		t.Errorf("exit %d: %q", code, r.out)
	}
}

func TestRunSaysHowTheWorkloadWasKilled(t *testing.T) {
	r := runGate(t, goodPlan(t, "sh", "-c", "kill -9 $$"))
	r.order("go NONCE")
	if code := r.end(); code != 128+9 {
		t.Errorf("exit %d", code)
	}
}

func TestRunWithoutGo(t *testing.T) {
	stopped := runGate(t, goodPlan(t, "echo", "ran"))
	if _, reply := stopped.order("stop probes\x1b[2J failed"); reply != "ok" {
		t.Errorf("%q", reply)
	}
	if code := stopped.end(); code != exitStopped || stopped.out.String() != "" || !strings.Contains(stopped.err.String(), "told to stop: probes?[2J failed") {
		t.Errorf("exit %d: %q %q", code, stopped.out, stopped.err)
	}
	p := goodPlan(t, "echo", "ran")
	p.DeadlineS = 1
	late := runGate(t, p)
	if code := late.end(); code != exitDeadline || late.out.String() != "" || !strings.Contains(late.err.String(), "within 1 s") {
		t.Errorf("exit %d: %q %q", code, late.out, late.err)
	}
}

func TestRunEndsTheWorkloadWhenItsTimeIsOver(t *testing.T) {
	p := goodPlan(t, "sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.01; done")
	p.TimeS = 1
	r := runGate(t, p)
	r.order("go NONCE")
	if code := r.end(); code != exitTime || !strings.Contains(r.err.String(), "limits.time is 1 s") {
		t.Errorf("exit %d: %q", code, r.err)
	}
}

func TestRunCannotStart(t *testing.T) {
	folder := goodPlan(t, "true")
	folder.Cwd = "/nowhere"
	for _, c := range []struct {
		plan *Plan
		code int
		says string
	}{
		{goodPlan(t, "no-such-program"), exitNotFound, "no-such-program, not in /usr/bin:/bin"},
		{goodPlan(t, "/etc/passwd"), exitCannot, "/etc/passwd"},
		{goodPlan(t, "/tmp"), exitCannot, "/tmp"},
		{folder, exitCannot, "working directory /nowhere"},
	} {
		r := runGate(t, c.plan)
		r.order("go NONCE")
		if code := r.end(); code != c.code || !strings.Contains(r.err.String(), c.says) {
			t.Errorf("%v: exit %d, %q", c.plan.Argv, code, r.err)
		}
	}
}

func TestProbePrintsOneReport(t *testing.T) {
	out, err := gate("probe", "--plan", writePlan(t, goodPlan(t, "true"))).Output()
	var report Report
	if err != nil || bytes.Count(out, []byte("\n")) != 1 || json.Unmarshal(out, &report) != nil || len(report.Checks) < 40 {
		t.Errorf("%v %d checks %q", err, len(report.Checks), out)
	}
}

func TestExecReplacesItself(t *testing.T) {
	p := goodPlan(t, "true")
	p.TokenEnv, p.TokenFile = []string{"TOKEN"}, writeFile(t, "token", "s3cret", 0o600)
	file := writePlan(t, p)
	out, err := gate("exec", "--plan", file, "--", "sh", "-c", "env | grep -v ^PWD=; exit 9").Output()
	if code := exitOf(t, err); code != 9 || !strings.Contains(string(out), "TOKEN=s3cret") || strings.Contains(string(out), underTest) {
		t.Errorf("exit %d: %q", code, out)
	}
	if out, err := gate("exec", "--plan", file, "--", "pwd").Output(); err != nil || strings.TrimSpace(string(out)) != p.Cwd {
		t.Errorf("%v: started in %q, not in %q", err, out, p.Cwd)
	}
	if code := exitOf(t, gate("exec", "--plan", file, "--", "no-such-program").Run()); code != exitNotFound {
		t.Errorf("exit %d", code)
	}
}
