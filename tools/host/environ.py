# SPDX-License-Identifier: BSD-4-Clause
"""The environment that a command gets."""

import fnmatch
import os

#: what root's environment may hand to the account; everything else may be a secret and stays (case S7).
#: Proxies stay too: ASF_BUILD_PROXY is the setting for builds, and nothing else may depend on the caller's shell (P14).
_PASSED = (
    "ASF_*",
    "CI",
    "LANG",
    "TERM",
    "COLORTERM",
    "NO_COLOR",
    "XDG_STATE_HOME",
    "XDG_CONFIG_HOME",
    "XDG_CACHE_HOME",
    "XDG_DATA_HOME",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
    "PIP_*",
    "GOPROXY",
    "GOFLAGS",
    "GOSUMDB",
    "GOPRIVATE",
    "GONOPROXY",
    "GONOSUMDB",
    "GOTOOLCHAIN",
    "npm_config_*",
    "NPM_CONFIG_*",
    "PYTEST_ADDOPTS",
    "SOURCE_DATE_EPOCH",
)
_CA_FILES = (
    "SSL_CERT_FILE",
    "PIP_CERT",
    "NODE_EXTRA_CA_CERTS",
    "REQUESTS_CA_BUNDLE",
    "CURL_CA_BUNDLE",
    "GIT_SSL_CAINFO",
)
_SYSTEM_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"


def for_account(account, run_dir, environment):
    """The account's environment before the tools are added: nothing of `environment` but what is named above.

    ASF_USERLAND is spent: the command is inside, and an ordinary user's tools/operator refuses it.
    """
    kept = {
        name: value
        for name, value in environment.items()
        if name != "ASF_USERLAND" and any(fnmatch.fnmatchcase(name, glob) for glob in _PASSED)
    }
    return {
        "LANG": "C.UTF-8",
        "TERM": "dumb",
        "ASF_HOME": account.pw_dir + "/.config/asf",
        **kept,
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
        "SHELL": "/bin/bash",
        "PATH": _SYSTEM_PATH,
        "XDG_RUNTIME_DIR": run_dir,
    }


def unreadable_authorities(environment):
    """Names of the variables whose CA file this process cannot read."""
    return [name for name in _CA_FILES if environment.get(name) and not os.access(environment[name], os.R_OK)]


def with_tools(environment, place, cache):
    """`environment` with the project's tools: `place` is the clone as the command sees it, `cache` a Cache."""
    tools, collections = str(cache.tools), f"{cache.own}:{cache.collections}"
    front = [f"{cache.venv}/bin", f"{place}/tools/bin"]
    if os.access("/usr/local/go/bin/go", os.X_OK):
        front.append("/usr/local/go/bin")
    rest = [part for part in environment.get("PATH", _SYSTEM_PATH).split(":") if part not in front]
    return {
        **environment,
        "PATH": ":".join(front + rest),
        "VIRTUAL_ENV": str(cache.venv),
        "PYTHONPATH": str(place),
        "PYTHONPYCACHEPREFIX": str(cache.base / "pycache"),
        "ANSIBLE_CONFIG": f"{place}/ansible.cfg",
        "ANSIBLE_COLLECTIONS_PATH": collections,
        "ANSIBLE_HOME": str(cache.base / "ansible"),
        "RUFF_CACHE_DIR": tools + "/ruff",
        "MYPY_CACHE_DIR": tools + "/mypy",
        "ASF_TOOL_CACHE": tools,
        "PYTEST_ADDOPTS": f"-o cache_dir={tools}/pytest " + environment.get("PYTEST_ADDOPTS", ""),
    }
