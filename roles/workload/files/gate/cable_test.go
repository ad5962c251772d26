// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

const insideEnv = "GATE_TEST_OWN_NETWORK"

// inOwnNetwork runs the calling test once more in a network namespace of its own, and says whether this is that run.
func inOwnNetwork(t *testing.T) bool {
	t.Helper()
	if os.Getenv(insideEnv) != "" {
		return true
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("no ip program on this host")
	}
	probe := exec.Command("/bin/true")
	probe.SysProcAttr = ownNetwork()
	if err := probe.Run(); err != nil {
		t.Skipf("this host gives no user namespace: %v", err)
	}
	child := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	child.Env = append(os.Environ(), insideEnv+"=1", underTest+"=") // see TestMain
	child.SysProcAttr = ownNetwork()
	if out, err := child.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
		t.Errorf("%v\n%s", err, out)
	}
	return false
}

func ownNetwork() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}}
}

func ip(t *testing.T, words ...string) {
	t.Helper()
	if out, err := exec.Command("ip", words...).CombinedOutput(); err != nil {
		t.Fatalf("ip %v: %v: %s", words, err, out)
	}
}

func plugged(t *testing.T, name string) <-chan struct{} {
	t.Helper()
	ip(t, "link", "add", name, "type", "veth", "peer", "name", name+"far")
	gone, err := watchCable(name)
	if err != nil {
		t.Fatal(err)
	}
	return gone
}

// A change that leaves the cable where it is says nothing; its loss is noticed at once, without waiting for the poll.
func TestWatchCable(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	defer func(old time.Duration) { cablePoll = old }(cablePoll)
	cablePoll = time.Minute
	gone := plugged(t, "agent0")
	ip(t, "link", "set", "agent0", "up")
	ip(t, "link", "add", "other0", "type", "veth", "peer", "name", "other1")
	ip(t, "link", "del", "other0")
	select {
	case <-gone:
		t.Fatal("gone, although it is there")
	case <-time.After(200 * time.Millisecond):
	}
	ip(t, "link", "del", "agent0")
	select {
	case <-gone:
	case <-time.After(5 * time.Second):
		t.Fatal("its loss was not noticed")
	}
}

func TestWatchCableThatIsNotThere(t *testing.T) {
	for _, name := range []string{"nosuchlink0", "", "a-name-that-is-too-long"} {
		if _, err := watchCable(name); err == nil {
			t.Errorf("%q is watched", name)
		}
	}
}

// The child is asked to end, as by TERM, and the reason is on record; between two starts there is no other start.
func TestSupervisorEndsWithItsCable(t *testing.T) {
	if !inOwnNetwork(t) {
		return
	}
	for name, script := range map[string]string{
		"running": "trap 'exit 0' TERM; while :; do sleep 0.01; done", "pausing": "exit 3",
	} {
		t.Run(name, func(t *testing.T) {
			out, ended := &lines{}, make(chan int, 1)
			s := &supervisor{name: "x", argv: []string{"/bin/sh", "-c", script}, out: out, signals: watchSignals(),
				cable: "agent0", gone: plugged(t, "agent0")}
			go func() { ended <- s.run() }()
			out.await(t, "start", 1)
			time.Sleep(50 * time.Millisecond)
			ip(t, "link", "del", "agent0")
			select {
			case code := <-ended:
				if code != 0 {
					t.Errorf("exit %d", code)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("it goes on")
			}
			var said []string
			for _, e := range out.events(t) {
				if e.Event == "stop" {
					said = append(said, e.Status)
				}
			}
			if len(said) != 1 || said[0] != "cable agent0 is gone" {
				t.Errorf("%v", out.events(t))
			}
		})
	}
}

func TestSuperviseArguments(t *testing.T) {
	name, cable, argv, ok := superviseArgs([]string{"caddy", "--while", "agent0", "--", "/caddy", "run"})
	if !ok || name != "caddy" || cable != "agent0" || len(argv) != 2 {
		t.Error(name, cable, argv, ok)
	}
	name, cable, argv, ok = superviseArgs([]string{"caddy", "--", "/caddy"})
	if !ok || name != "caddy" || cable != "" || len(argv) != 1 {
		t.Error(name, cable, argv, ok)
	}
	for _, bad := range [][]string{{}, {"x"}, {"x", "--"}, {"", "--", "c"}, {"x", "--while", "--", "c"},
		{"x", "--while", "eth0", "--"}, {"x", "c", "d"}} {
		if _, _, _, ok := superviseArgs(bad); ok {
			t.Error(bad)
		}
	}
}
