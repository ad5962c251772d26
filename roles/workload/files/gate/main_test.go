// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// underTest marks every process that a test starts from this binary: it is the gate, whatever its arguments are, and
// never the tests again (a test of a bad role would otherwise start all tests, without end).
const underTest = "ASF_GATE_UNDER_TEST"

// TestMain runs the tests only where "go test" asked for them, which it always does by -test flags, so that a child
// that lost the mark with its environment is the gate as well.
func TestMain(m *testing.M) {
	asked := len(os.Args) > 1 && strings.HasPrefix(os.Args[1], "-test.")
	if os.Getenv(underTest) != "" || !asked {
		main()
		return
	}
	_ = os.Setenv(underTest, "1")
	os.Exit(m.Run())
}

// gate returns a command that runs this binary as the gate.
func gate(args ...string) *exec.Cmd {
	c := exec.Command("/proc/self/exe", args...)
	c.Args[0] = "gate"
	return c
}

// goodPlan is a plan that the gate accepts, for a workload that runs argv.
func goodPlan(t *testing.T, argv ...string) *Plan {
	t.Helper()
	return &Plan{Version: 1, Session: "x.main", PlanDigest: "abc", Mode: modeIsolated, Socket: "gate-test-" + newNonce()[:12], DeadlineS: 20,
		UID: os.Getuid(), GID: os.Getgid(), Caps: "0000000000000000", Env: map[string]string{"PATH": "/usr/bin:/bin"},
		Argv: argv, Cwd: t.TempDir(),
		Probes: Probes{Unreach: []string{"127.0.0.2:9"}}}
}

func writePlan(t *testing.T, p any) string {
	t.Helper()
	raw, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	return writeFile(t, "gate.json", string(raw), 0o644)
}

func writeFile(t *testing.T, name, text string, mode os.FileMode) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	return file
}

func exitOf(t *testing.T, err error) int {
	t.Helper()
	if err == nil {
		return 0
	}
	exit, ok := err.(*exec.ExitError)
	if !ok {
		t.Fatal(err)
	}
	return exit.ExitCode()
}

func TestWrongArgumentsAreAUsageError(t *testing.T) {
	for _, args := range [][]string{{}, {"nonsense"}, {"run", "more"}, {"run", "--plan"}, {"probe", "x"}, {"exec"},
		{"exec", "ls"}, {"exec", "--"}, {"supervise"}, {"supervise", "x"}, {"supervise", "x", "--"},
		{"supervise", "x", "ls", "-l"}} {
		c := gate(args...)
		if len(args) == 0 {
			c = exec.Command("/proc/self/exe", "nonsense")
		}
		out, err := c.CombinedOutput()
		if code := exitOf(t, err); code != exitUsage || !bytes.HasPrefix(out, []byte("usage: gate run")) {
			t.Errorf("%q: exit %d, %s", args, code, out)
		}
	}
}

func TestVersion(t *testing.T) {
	out, err := gate("version").Output()
	if err != nil || !strings.HasPrefix(string(out), "gate protocol 1 go") {
		t.Errorf("%q %v", out, err)
	}
}
