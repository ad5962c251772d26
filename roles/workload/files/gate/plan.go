// SPDX-License-Identifier: BSD-4-Clause

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"regexp"
	"sort"
	"strings"
)

const (
	defaultPlan   = "/asf/gate.json"
	maxPlanBytes  = 1 << 20
	maxServerName = 253 // RFC 1035 section 2.3.4
	maxToken      = 4096
	maxDeadline   = 24 * 3600
	maxTime       = 10 * 365 * 24 * 3600
)

// Plan is the gate's part of the session's plan, rendered by the host into a read-only mount.
type Plan struct {
	Version       int               `json:"version"`
	Session       string            `json:"session"`
	PlanDigest    string            `json:"plan_digest"`
	Socket        string            `json:"socket"`     // name in the abstract namespace, without the leading NUL
	Mode          string            `json:"mode"`       // network.mode
	DeadlineS     int               `json:"deadline_s"` // seconds to wait for go
	UID           int               `json:"uid"`
	GID           int               `json:"gid"`
	Caps          string            `json:"caps"` // 16 hex digits, as in /proc/PID/status
	NestedSandbox bool              `json:"nested_sandbox"`
	NetRaw        bool              `json:"net_raw"`
	Env           map[string]string `json:"env"` // complete: nothing else reaches the workload but TokenEnv
	TokenFile     string            `json:"token_file"`
	TokenEnv      []string          `json:"token_env"`
	Argv          []string          `json:"argv"`
	Cwd           string            `json:"cwd"`
	TimeS         int               `json:"time_s"` // seconds that the workload may run; 0 means for ever
	Probes        Probes            `json:"probes"`
}

// Probes holds what the inside probes compare with. Addresses are "IPv4:port" or "[IPv6]:port"; names never occur.
type Probes struct {
	Unreach   []string     `json:"unreach"`
	Reach     []string     `json:"reach"`
	Closed    []string     `json:"closed"`
	DroppedOK bool         `json:"dropped_ok"` // a timeout on a closed port counts as closed
	DNS       []string     `json:"dns"`
	Allow     *ProxyTarget `json:"allow"`
	Front     *FrontTarget `json:"front"`
	Deny      *ProxyTarget `json:"deny"`
	Policy    string       `json:"policy"` // the id that whoever refuses, or the front's control, has to name
	TLS       *TLSTarget   `json:"tls"`
	Routed    *Routed      `json:"routed"`
	Mounts    []Mount      `json:"mounts"`
	Gone      []string     `json:"gone"`
}

// ProxyTarget is one CONNECT through one forward proxy.
type ProxyTarget struct {
	Proxy  string `json:"proxy"`
	Target string `json:"target"`
}

// TLSTarget is the listener for clients without a proxy; an empty Allow means that no name is the control.
type TLSTarget struct {
	Addr  string `json:"addr"`
	Allow string `json:"allow"`
	Deny  string `json:"deny"`
}

// Routed is what the probes of routed mode compare with. Allowed and Blocked are two ports of one host, of which the
// rules allow one. UDP ("IPv4:port") and ICMP ("IPv4") hold one target for each rule of that kind, Silent the gateway's
// own ports, Routes the declared CIDRs, Via the gateway's end of the cable.
type Routed struct {
	Allowed string   `json:"allowed"`
	Blocked string   `json:"blocked"`
	UDP     []string `json:"udp"`
	ICMP    []string `json:"icmp"`
	Silent  []string `json:"silent"`
	Routes  []string `json:"routes"`
	Via     string   `json:"via"`
}

// FrontTarget is the inference front's control resource.
type FrontTarget struct {
	Addr string `json:"addr"`
	Path string `json:"path"`
}

// Mount is one mount that the plan asked for. An empty type stands for any file system.
type Mount struct {
	Target string `json:"target"`
	Type   string `json:"type"`
	RW     bool   `json:"rw"`
}

// planArgs takes "[--plan FILE]" off args.
func planArgs(args []string) (path string, rest []string, err error) {
	if len(args) > 0 && args[0] == "--plan" {
		if len(args) < 2 {
			return "", nil, errors.New("--plan wants a file")
		}
		return args[1], args[2:], nil
	}
	return defaultPlan, args, nil
}

// readPlan loads and checks the plan. Unknown keys are errors: a gate that does not understand its plan must not run.
func readPlan(path string) (*Plan, error) {
	raw, err := readBounded(path, maxPlanBytes)
	if err != nil {
		return nil, err
	}
	p := &Plan{}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(p); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("%s: more than one JSON document", path)
	}
	if err := p.check(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return p, nil
}

func readBounded(path string, limit int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	raw, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(raw)) > limit {
		return nil, fmt.Errorf("%s: larger than %d bytes", path, limit)
	}
	return raw, nil
}

var (
	socketName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)
	capsHex    = regexp.MustCompile(`^[0-9a-f]{16}$`)
	envName    = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
)

func (p *Plan) check() error {
	switch {
	case p.Version != protocolVersion:
		return fmt.Errorf("version: found %d, this gate speaks %d", p.Version, protocolVersion)
	case p.PlanDigest == "" || len(p.PlanDigest) > 128:
		return errors.New("plan_digest: missing or too long")
	case !socketName.MatchString(p.Socket):
		return fmt.Errorf("socket: %q is not a name", p.Socket)
	case p.DeadlineS < 1 || p.DeadlineS > maxDeadline:
		return fmt.Errorf("deadline_s: %d is not within 1 and %d", p.DeadlineS, maxDeadline)
	case p.TimeS < 0 || p.TimeS > maxTime:
		return fmt.Errorf("time_s: %d is not within 0 and %d", p.TimeS, maxTime)
	case !capsHex.MatchString(p.Caps):
		return fmt.Errorf("caps: %q is not 16 hex digits", p.Caps)
	case len(p.Argv) == 0 || p.Argv[0] == "":
		return errors.New("argv: empty")
	case !strings.HasPrefix(p.Cwd, "/"):
		return fmt.Errorf("cwd: %q is not absolute", p.Cwd)
	case len(p.TokenEnv) > 0 && p.TokenFile == "":
		return errors.New("token_env: needs token_file")
	case p.Probes.Front != nil && p.TokenFile == "":
		return errors.New("probes.front: needs token_file")
	}
	if err := p.checkEnv(); err != nil {
		return err
	}
	if err := p.Probes.check(); err != nil {
		return err
	}
	return p.checkMode()
}

func (p *Plan) checkEnv() error {
	for _, name := range p.TokenEnv {
		if !envName.MatchString(name) {
			return fmt.Errorf("token_env: %q is not a variable name", name)
		}
	}
	for name, value := range p.Env {
		if !envName.MatchString(name) || strings.ContainsRune(value, 0) {
			return fmt.Errorf("env: %q is not a variable name, or its value holds a NUL", name)
		}
	}
	return nil
}

func (pr *Probes) check() error {
	lists := map[string][]string{"unreach": pr.Unreach, "reach": pr.Reach, "closed": pr.Closed, "dns": pr.DNS}
	if pr.Allow != nil {
		lists["allow.proxy"] = []string{pr.Allow.Proxy}
	}
	if pr.Deny != nil {
		lists["deny.proxy"] = []string{pr.Deny.Proxy}
	}
	if pr.TLS != nil {
		lists["tls.addr"] = []string{pr.TLS.Addr}
		if len(pr.TLS.Allow) > maxServerName || len(pr.TLS.Deny) > maxServerName {
			return errors.New("probes.tls: a name is too long")
		}
	}
	if pr.Front != nil {
		lists["front.addr"] = []string{pr.Front.Addr}
	}
	if pr.Routed != nil {
		if err := pr.Routed.check(); err != nil {
			return err
		}
	}
	for key, list := range lists {
		for _, a := range list {
			if _, err := netip.ParseAddrPort(a); err != nil {
				return fmt.Errorf("probes.%s: %q is not IP:port", key, a)
			}
		}
	}
	for _, t := range []*ProxyTarget{pr.Allow, pr.Deny} {
		if t != nil && !plainWord(t.Target) {
			return fmt.Errorf("probes: target %q is not host:port", t.Target)
		}
	}
	if pr.Policy != "" && (!plainWord(pr.Policy) || pr.Deny == nil && pr.Front == nil) {
		return fmt.Errorf("probes.policy: %q is no word, or nobody could name it", pr.Policy)
	}
	if pr.Front != nil && (!plainWord(pr.Front.Path) || pr.Front.Path[0] != '/') {
		return fmt.Errorf("probes.front: path %q", pr.Front.Path)
	}
	return nil
}

func (r *Routed) check() error {
	ends := append([]string{r.Allowed, r.Blocked}, r.UDP...)
	for _, a := range append(ends, r.Silent...) {
		if ap, err := netip.ParseAddrPort(a); err != nil || !ap.Addr().Is4() {
			return fmt.Errorf("probes.routed: %q is not IPv4:port", a)
		}
	}
	for _, a := range append([]string{r.Via}, r.ICMP...) {
		if ip, err := netip.ParseAddr(a); err != nil || !ip.Is4() {
			return fmt.Errorf("probes.routed: %q is not an IPv4 address", a)
		}
	}
	for _, cidr := range r.Routes {
		if net, err := netip.ParsePrefix(cidr); err != nil || !net.Addr().Is4() || net.Bits() == 0 {
			return fmt.Errorf("probes.routed: %q is not an IPv4 network, or is every address", cidr)
		}
	}
	return nil
}

// plainWord says whether s is printable ASCII without blanks, so that it cannot end an HTTP line.
func plainWord(s string) bool {
	for _, r := range s {
		if r <= ' ' || r > '~' {
			return false
		}
	}
	return s != ""
}

// peers returns the addresses that the plan expects a route to: the near end of the workload's own cable.
func (pr *Probes) peers() map[string]bool {
	all := append([]string{}, pr.Reach...)
	for _, t := range []*ProxyTarget{pr.Allow, pr.Deny} {
		if t != nil {
			all = append(all, t.Proxy)
		}
	}
	if pr.TLS != nil {
		all = append(all, pr.TLS.Addr)
	}
	if pr.Front != nil {
		all = append(all, pr.Front.Addr)
	}
	hosts := map[string]bool{}
	for _, a := range all {
		if ap, err := netip.ParseAddrPort(a); err == nil {
			hosts[ap.Addr().String()] = true
		}
	}
	return hosts
}

// readToken returns the session token, without the newline that an editor may have added, or "" when there is none.
func readToken(p *Plan) (string, error) {
	if p.TokenFile == "" {
		return "", nil
	}
	raw, err := readBounded(p.TokenFile, maxToken)
	if err != nil {
		return "", err
	}
	token := strings.TrimRight(string(raw), "\r\n")
	if !plainWord(token) {
		return "", fmt.Errorf("%s: empty, or not one printable word", p.TokenFile)
	}
	return token, nil
}

// environment is exactly what the workload gets: the planned variables and the token's, sorted.
func (p *Plan) environment(token string) []string {
	env := make([]string, 0, len(p.Env)+len(p.TokenEnv))
	for name, value := range p.Env {
		env = append(env, name+"="+value)
	}
	for _, name := range p.TokenEnv {
		env = append(env, name+"="+token)
	}
	sort.Strings(env)
	return env
}
