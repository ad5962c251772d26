// SPDX-License-Identifier: BSD-4-Clause

// Package asf holds the sandbox's own Caddy modules: everything between a workload and the network is decided here.
//
//   - asf_connect (http.handlers): the forward proxy of L1 (the agent's) and L3 (the broker's). CONNECT only.
//   - asf_transparent (an app): L1t, for the agent's TLS clients that ignore proxy variables; asf_connect decides.
//   - asf_inference (http.handlers): the inference front, L2. Exact routes, session token in, broker key out.
//   - asf_refuse (http.handlers): for a server's error routes; gives Caddy's own 4xx the shape of a refusal.
//   - asf_guard (caddy.listeners): connection cap, and a log line for what net/http refuses by itself.
//
// Rules that every file keeps: a decision reads the raw request target and nothing that was parsed from it by others;
// a name is judged before it is resolved, an address before it is dialled; what a client sent is data, so it is
// bounded and made printable before it is logged or answered; every request leaves exactly one "decision" line.
// No proxy variable of the environment is ever read.
package asf
