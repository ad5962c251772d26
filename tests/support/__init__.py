# SPDX-License-Identifier: BSD-4-Clause
"""What the tests share.

The programs of the test world (`tools/testnet` starts them in a network namespace of their own; standard library only):
  world        main program: binds everything, answers the control socket
  recorder     the event log that everything reports to
  addresses    who has which address, and the default names
  dns_server   scriptable resolver            sites       TLS sites, plain ports, canaries
  authority    certificate authority          providers   fake Anthropic and OpenAI services
  wire         the formats of those services

What test code imports:
  client       World: asks the test world what it saw, scripts its answers
  product      operator_home, asf_play, in_agent, sample_repo, podman, SessionFactory
  netns        in_netns: run a Python function in a container's network namespace; wire_sh: a script with `ip` and `nft`
  probe_tools  raw probes, usable in any namespace and inside an agent on `python3 -`
  listeners    canaries on the operator's own host
  waiting      wait_for: a condition with a deadline instead of a sleep
  leaks        what a session left behind
"""
