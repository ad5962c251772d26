// SPDX-License-Identifier: BSD-4-Clause

package main

type definition struct {
	invariant int
	expect    string
}

// definitions mirrors INSIDE of plugins/module_utils/core/inside.py, which is the one that counts; a unit test there
// compares the two.
var definitions = map[string]definition{
	"pid1":            {3, "the gate is PID 1 of its own pid namespace"},
	"pid1-opaque":     {3, "PID 1 is not dumpable: its environment and memory cannot be read"},
	"seccomp-mode":    {1, "a seccomp filter is in force (mode 2)"},
	"no-new-privs":    {1, "no_new_privs is set"},
	"caps":            {1, "all five capability sets are the planned ones"},
	"uid-gid":         {1, "all four uids and gids are the planned ones, no supplementary group"},
	"namespaces":      {1, "user, pid, ipc and uts namespaces are not the host's"},
	"fds":             {11, "no descriptor beyond 0, 1 and 2"},
	"core-limit":      {1, "core dumps are off, soft and hard limit"},
	"environ":         {4, "PID 1's environment holds only the engine's few names"},
	"sys-unshare":     {1, "unshare is refused by the filter (allowed with nested_sandbox)"},
	"sys-setns":       {1, "setns is refused by the filter (allowed with nested_sandbox)"},
	"sys-mount":       {1, "mount is refused by the filter (allowed with nested_sandbox)"},
	"sys-umount":      {1, "umount2 is refused by the filter (allowed with nested_sandbox)"},
	"sys-chroot":      {1, "chroot is refused by the filter (allowed with nested_sandbox)"},
	"sys-open-tree":   {1, "open_tree is refused by the filter"},
	"sys-fsconfig":    {1, "fsconfig is refused by the filter"},
	"sys-mount-attr":  {1, "mount_setattr is refused by the filter"},
	"sys-clone3":      {1, "clone3 answers ENOSYS"},
	"sys-io-uring":    {1, "io_uring_setup is refused by the filter"},
	"sys-keyctl":      {1, "keyctl is refused by the filter"},
	"sys-add-key":     {1, "add_key is refused by the filter"},
	"sys-request-key": {1, "request_key is refused by the filter"},
	"sys-bpf":         {1, "bpf is refused by the filter"},
	"sys-userfaultfd": {1, "userfaultfd is refused by the filter"},
	"sys-perf":        {1, "perf_event_open is refused by the filter"},
	"sys-file-handle": {1, "name_to_handle_at is refused by the filter"},
	"clone-newuser":   {1, "clone(CLONE_NEWUSER) is refused by the filter (allowed with nested_sandbox)"},
	"entry-int80":     {1, "the 32-bit system call entry kills"},
	"entry-x32":       {1, "the x32 system call entry kills"},
	"sock-control":    {1, "UNIX, INET, INET6 and NETLINK_ROUTE sockets open"},
	"sock-families":   {1, "every other socket family is refused by the filter"},
	"sock-vsock":      {1, "AF_VSOCK is refused by the filter"},
	"sock-highbits":   {1, "high argument bits do not bypass the socket filter"},
	"sock-netlink":    {1, "every netlink protocol but 0 is refused by the filter"},
	"sock-raw":        {1, "raw sockets are refused by the filter (open with NET_RAW)"},
	"sock-pair":       {1, "socketpair is refused for every family but UNIX"},
	"net-links":       {2, "the only links up are lo and the planned cables"},
	"net-routes":      {2, "the only routes are to the cable's peer, in every table, both families"},
	"no-ipv6":         {2, "no IPv6 address"},
	"loopback":        {3, "the probes see a connection and an answer over loopback"},
	"unreach":         {2, "TCP, UDP and ICMP to addresses outside the plan: network unreachable"},
	"reach":           {2, "the planned listeners accept TCP connections"},
	"closed":          {2, "unplanned ports of the cable's and of other addresses are closed"},
	"dns-silent":      {2, "no DNS answer over UDP or TCP"},
	"proxy-allow":     {3, "the control name is allowed by the proxy's decision"},
	"proxy-reach":     {3, "the control host is reached through the proxy"},
	"proxy-deny":      {2, "an undeclared name is denied by policy"},
	"front-control":   {3, "the front knows the session token"},
	"front-refuses":   {4, "the front refuses no token and a wrong token"},
	"mounts":          {1, "the planned mounts and the engine's own, read-only where not planned rw"},
	"root-readonly":   {1, "the root file system is read-only"},
	"proc-masked":     {1, "kernel settings are read-only, and the engine's masked files are masked"},
	"dev-nodes":       {1, "only the engine's harmless device nodes exist"},
	"no-sockets":      {1, "no socket of an engine or of the host is in reach"},
}
