# SPDX-License-Identifier: BSD-2-Clause
"""Every key of ``agents/NAME/runtime.yml``: the one source of the validator, the JSON Schema and the reference."""

from __future__ import annotations

from . import formats as form
from .schema import Anything, ByKind, Choice, Flag, Key, ListOf, MapOf, Number, Section, Text, Variants, When

PORT = Number(1, 65535, remedy="name a port from 1 to 65535, as a number")
MAX_RULES = 200
MAX_PORTS = 200
PRIVATE = ListOf(Text(form.PRIVATE), max_items=50)

LIMITS = Section(
    {
        "memory": Key(Text(form.SIZE), "Memory of the workload, such as `8g`."),
        "cpus": Key(Number(0.01, 1024, decimal=True), "Processors, such as `2` or `1.5`."),
        "pids": Key(Number(1, 4194304), "Processes and threads."),
        "disk": Key(Text(form.SIZE), "Size of the home, a tmpfs, such as `2g`."),
        "time": Key(Text(form.DURATION), "How long the session may live, such as `8h`."),
    }
)

_RUNTIME = Section(
    {
        "mode": Key(
            Choice(("interactive", "service")),
            "`interactive`: a shell in the workspace (or `command`, when given) on a terminal. `service`: run "
            "`command`, stream its output, close, exit with its code.",
            default="interactive",
        ),
        "command": Key(
            ListOf(Text(max_length=131072, multiline=True), min_items=1, unique=False),
            "The program and its arguments, word by word; never a shell string. Needed by `service`.",
        ),
    },
    rules=(
        When(
            "mode", ("service",), needs=("command",), why="name the program that the service runs, as a list of words"
        ),
    ),
    always=True,
)

_STATE = Section(
    {
        "key": Key(Text(form.NAME), "Name of the volume, unique in the manifest.", required=True),
        "target": Key(
            Text(form.TARGET),
            "Where it is mounted: below `/home/node`, never inside or above another mount.",
            required=True,
        ),
    }
)

_FILESYSTEM = Section(
    {
        "state": Key(
            ListOf(_STATE, max_items=20),
            "Named volumes that outlive sessions, cleared by `reset.yml` alone. One session at a time uses one; a "
            "second session of the agent gets volumes of its own. An open under wider egress than the last says so.",
            default=(),
        ),
    },
    always=True,
)

_MOCK_TURN = Variants(
    (
        Section({"text": Key(Text(max_length=100000, multiline=True), "What the model says.", required=True)}),
        Section(
            {
                "tool": Key(Text(max_length=200), "The name of the tool that the model calls.", required=True),
                "input": Key(MapOf(form.ANY_KEY, Anything()), "The tool's input.", required=True),
            }
        ),
    )
)

_LLM = Section(
    {
        "broker": Key(
            Flag(),
            "`false`: no broker and no front; the client logs in by itself, and Caddy still enforces the list.",
            default=True,
            default_words="`true` where `llm` is present, `false` where it is absent",
        ),
        "protocol": Key(
            Choice(("anthropic", "openai")),
            "What the agent speaks to the front.",
            default_words="the adapter's own; `generic` has to say",
        ),
        "provider": Key(
            Text(form.PROVIDER), "The upstream, by LiteLLM's word; any that LiteLLM knows. Needed with the broker."
        ),
        "api_key_env": Key(
            Text(form.ENV_NAME),
            "The variable of the secrets files, or of a source in `config.yml`, that holds the provider's key. "
            "With `llm.broker: false` the agent has the key in a variable of this name.",
            default_words="`PROVIDER_API_KEY`, the provider in upper case",
        ),
        "direct_domain": Key(
            Text(form.HOST),
            "The provider's host: dropped from the agent's list while brokered, and the broker's whole allowlist.",
            default_words="known for common providers, needed for others",
        ),
        "models": Key(
            ListOf(Text(form.MODEL, max_length=200), min_items=1),
            "Models that the agent may ask for; `*` stands for any characters.",
            default_words="every model the key can reach",
        ),
        "base_url": Key(
            Text(form.BASE_URL),
            "A provider on another host (self-hosted, a gateway), over https; its host becomes the broker's whole "
            "allowlist.",
        ),
        "private": Key(
            PRIVATE,
            "The only special-range addresses that the provider's host may resolve to (self-hosted models).",
            default=(),
        ),
        "mock": Key(
            ByKind((Text(max_length=100000, multiline=True), ListOf(_MOCK_TURN, 1, 200, unique=False))),
            "Answers without any provider: a text, or a list of turns `{text}` or `{tool, input}`. The turn is chosen "
            "by the number of assistant turns in the request; the last one repeats.",
        ),
        "hosted_tools": Key(
            ListOf(Text(form.HOSTED, max_length=100)),
            "What the provider may do or fetch by itself (web search, code execution, remote MCP, URLs), by the words "
            "of docs/front.md, or another type by its own name.",
            default=(),
        ),
        "limits": Key(
            Section(
                {
                    "requests_per_minute": Key(Number(1, 1000000), "Requests in a minute."),
                    "concurrent_requests": Key(Number(1, 1000), "Requests that run at once."),
                    "request_bytes": Key(Number(1, 1 << 40), "Bytes of one request; never more than 32 MiB."),
                    "tokens_per_session": Key(
                        Number(1, 1 << 50),
                        "Tokens, as the provider reports them: input (cached too) and output. A request that begins "
                        "below the limit is finished.",
                    ),
                    "usd_per_session": Key(
                        Number(0.001, 1e9, decimal=True), "Spend: tokens as the provider reports them, at list prices."
                    ),
                }
            ),
            "Past them, requests are refused with a clear error.",
        ),
    },
    rules=(
        When(
            "broker",
            (False,),
            forbids=("mock", "base_url", "private", "hosted_tools", "limits"),
            why="only the broker could do that: remove the key, or set llm.broker to true",
        ),
    ),
)

_DOMAIN = Section(
    {
        "name": Key(Text(form.HOST), "The exact host name.", required=True),
        "ports": Key(ListOf(PORT, 1, 50), "Ports that may be asked for.", default=(443,)),
        "tls": Key(
            Choice(("required", "any")),
            "`required`: the ClientHello's server name must be the CONNECT name. `any`: not checked.",
            default="required",
        ),
        "private": Key(PRIVATE, "The only special-range addresses that this name may resolve to.", default=()),
    }
)

_TUPLE = Section(
    {
        "cidr": Key(
            Text(form.DESTINATION),
            "The destination, in canonical form. `internet` stands for every public address; a special-purpose range "
            "(10.0.0.0/8 and its like) is reached only where an entry names it, or a part of it. Never: loopback, "
            "link-local, multicast, broadcast, the host's own addresses.",
            required=True,
        ),
        "protocol": Key(Choice(("tcp", "udp", "icmp_echo")), "What may be sent there.", required=True),
        "ports": Key(
            ByKind((ListOf(PORT, 1, MAX_PORTS), Choice(("any",), "list every port by its number, or write any"))),
            f"Ports of `tcp` and `udp` (at most {MAX_PORTS}), or `any`.",
        ),
    },
    rules=(
        When("protocol", ("tcp", "udp"), needs=("ports",), why="list the ports, or write any"),
        When("protocol", ("icmp_echo",), forbids=("ports",), why="ICMP has no ports: remove the key"),
    ),
)

_VERIFY = Section(
    {
        "address": Key(Text(form.ADDRESS), "A host that answers.", required=True),
        "protocol": Key(Choice(("tcp",)), "`tcp`.", default="tcp"),
        "port": Key(PORT, "A port that is open on it and allowed.", required=True),
        "blocked_port": Key(PORT, "A port that is open on it and not allowed.", required=True),
    }
)

PROXY_URL_WORDS = (
    "The proxy, without credentials: `http://` or `https://` (TLS to the proxy), a host name or IPv4 address, a port "
    "(80 or 443 when absent). It may have a private address, but not one of this host."
)

_NETWORK = Section(
    {
        "mode": Key(Choice(("proxy", "isolated", "routed")), "How the agent reaches the network.", default="proxy"),
        "allow_domains": Key(
            ListOf(ByKind((Text(form.HOST), _DOMAIN)), max_items=500),
            "The complete list of hosts; nothing is implied. An entry is a host name (port 443, TLS checked) or a "
            "mapping.",
            default=(),
        ),
        "verify_domain": Key(
            Text(form.HOST),
            "The positive control: one of `allow_domains`, not the `direct_domain` that brokering drops.",
            default_words="the front when brokered, else the first allowed name",
        ),
        "allow": Key(
            ListOf(_TUPLE, max_items=MAX_RULES),
            f"`routed` only: what may be reached, as at most {MAX_RULES} IPv4 tuples that do not overlap.",
            default=(),
        ),
        "verify": Key(_VERIFY, "`routed` only, and needed there: the control."),
        "upstream_proxy": Key(
            Section(
                {
                    "url": Key(Text(form.PROXY_URL), PROXY_URL_WORDS, required=True),
                    "secret": Key(
                        Text(form.ENV_NAME), "The variable of `secrets.files` that holds its `user:password`."
                    ),
                }
            ),
            "Chain through the operator's proxy: list, ports and server names are enforced before it; it resolves the "
            "names, so the check of addresses moves there.",
        ),
    },
    rules=(
        When(
            "mode",
            ("routed",),
            needs=("allow", "verify"),
            forbids=("allow_domains", "verify_domain"),
            why="routed mode declares IPv4 tuples (network.allow) and a control (network.verify)",
        ),
        When(
            "mode",
            ("proxy",),
            forbids=("allow", "verify"),
            why="IPv4 tuples belong to network.mode: routed; proxy mode takes network.allow_domains",
        ),
        When(
            "mode",
            ("isolated",),
            forbids=("allow_domains", "verify_domain", "allow", "verify", "upstream_proxy"),
            why="an isolated agent reaches nothing but the front: remove the key, or choose another network.mode; "
            "a proxy for the provider belongs into config.yml (upstream_proxy)",
        ),
    ),
    always=True,
)

_PACKAGES = Section(
    {
        "apt": Key(ListOf(Text(form.APT), max_items=200), "Packages of the distribution.", default=()),
        "pip": Key(
            Text(form.FILE_NAME),
            "A requirements file beside the manifest: every package with its exact version, all with hashes or none. "
            "Wheels only.",
        ),
        "npm": Key(
            Text(form.FILE_NAME),
            "A package-lock.json beside the manifest, and `package.json` with it. Node comes along.",
        ),
        "npm_scripts": Key(
            ListOf(Text(form.NPM), max_items=50),
            "npm packages whose install scripts are run when the image is built; of others they are not.",
            default=(),
        ),
    }
)

MANIFEST = Section(
    {
        "name": Key(Text(form.NAME), "The agent's name, equal to the folder's.", required=True),
        "description": Key(Text(max_length=4096, multiline=True), "For people.", default=""),
        "adapter": Key(
            Choice(("claude", "codex", "hermes", "generic")),
            "What is installed in the image and how its client finds the front.",
            default="generic",
        ),
        "isolation": Key(Choice(("container", "microvm")), "What the workload runs in.", default="container"),
        "microvm": Key(
            Section(
                {
                    "engine": Key(
                        Choice(("krun", "qemu", "auto")),
                        "`auto`: one that a boot probe has shown to work on this host; never a container.",
                        default="auto",
                    )
                }
            ),
            "Choices for `isolation: microvm`.",
        ),
        "runtime": Key(_RUNTIME, "What runs."),
        "nested_sandbox": Key(
            Flag(),
            "`true`: the workload may create user namespaces, for clients that bring a sandbox of their own. Announced "
            "at open.",
            default=False,
        ),
        "limits": Key(
            LIMITS,
            "Limits of the workload; a limit that the host cannot enforce is reported at open.",
            default_words="those of the inventory",
        ),
        "filesystem": Key(_FILESYSTEM, "What is mounted besides the granted repositories."),
        "llm": Key(_LLM, "The model, through front and broker."),
        "network": Key(_NETWORK, "What the agent may reach."),
        "secrets": Key(
            Section(
                {
                    "files": Key(
                        ListOf(Text(form.FILE_NAME, max_length=255), max_items=20),
                        "File names under the secrets folder, mode 0600; later files override earlier ones. Only the "
                        "variable of `llm.api_key_env` is taken, for the broker, or with `llm.broker: false` for the "
                        "agent itself, where it is set; others are named in a warning and go nowhere.",
                        default=(),
                    )
                },
                always=True,
            ),
            "Where the provider's key is read from.",
        ),
        "env": Key(
            MapOf(form.ENV_NAME, Text(min_length=0, max_length=32768, multiline=True)),
            "Static environment of the workload. Values are text: write numbers in quotes.",
            default_words="empty",
        ),
        "capabilities": Key(
            ListOf(Choice(("net_raw",))), "`net_raw`, in `routed` only; nothing else exists.", default=()
        ),
        "packages": Key(_PACKAGES, "What the image of this agent adds to its adapter's."),
    },
    rules=(
        When(
            "network.mode",
            ("proxy", "isolated"),
            forbids=("capabilities",),
            why="a capability can only be granted with network.mode: routed",
        ),
    ),
)
