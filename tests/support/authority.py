# SPDX-License-Identifier: BSD-4-Clause
"""Certificate authority of the test world: one root, leaf certificates on demand by server name.

Uses the openssl command; keys are made here and never leave the folder."""

from __future__ import annotations

import fcntl
import re
import ssl
import subprocess
import threading
from pathlib import Path

_NAME = re.compile(r"^[A-Za-z0-9_.-]{1,253}$")
_DAYS = "30"


def _openssl(*args: str) -> None:
    done = subprocess.run(["openssl", *args], capture_output=True, text=True, timeout=30, check=False)
    if done.returncode:
        raise RuntimeError(f"openssl {args[0]} failed: {done.stderr.strip()}")


class Authority:
    """Root certificate and key in `folder`; worlds share it, so that whatever trusts the root goes on doing so."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.certificate = folder / "ca.pem"
        self._key = folder / "ca.key"
        self._leaf_key = folder / "leaf.key"
        self._contexts: dict[str, ssl.SSLContext] = {}
        self._lock = threading.Lock()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not self._usable():
                self._make()

    def _usable(self) -> bool:
        """True when the root exists and is valid for another day."""
        if not (self.certificate.exists() and self._leaf_key.exists()):
            return False
        check = ["openssl", "x509", "-in", str(self.certificate), "-noout", "-checkend", "86400"]
        return subprocess.run(check, capture_output=True, timeout=30, check=False).returncode == 0

    def _make(self) -> None:
        curve = ("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out")
        for key in (self._key, self._leaf_key):
            _openssl(*curve, str(key))
            key.chmod(0o600)
        extensions = ("basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign")
        _openssl(
            *("req", "-x509", "-new", "-key", str(self._key), "-out", str(self.certificate), "-days", _DAYS),
            *("-subj", "/CN=ASF test world root"),
            *(word for extension in extensions for word in ("-addext", extension)),
        )

    def context(self, name: str | None) -> ssl.SSLContext:
        """Server context with a certificate for `name` (None or an odd name: one that no client expects)."""
        name = name if name and _NAME.match(name) else "no-server-name.invalid"
        with self._lock:
            if name not in self._contexts:
                self._contexts[name] = self._issue(name)
            return self._contexts[name]

    def _issue(self, name: str) -> ssl.SSLContext:
        leaf = self.folder / f"leaf-{threading.get_native_id()}.pem"
        extensions = (
            *("basicConstraints=critical,CA:FALSE", "keyUsage=critical,digitalSignature"),
            *("extendedKeyUsage=serverAuth", f"subjectAltName=DNS:{name}"),
        )
        _openssl(
            *("req", "-x509", "-new", "-CA", str(self.certificate), "-CAkey", str(self._key)),
            *("-key", str(self._leaf_key), "-out", str(leaf), "-days", _DAYS, "-subj", "/CN=ASF test world leaf"),
            *(word for extension in extensions for word in ("-addext", extension)),
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.set_alpn_protocols(["http/1.1"])
        context.load_cert_chain(leaf, self._leaf_key)
        leaf.unlink()
        return context

    def server_context(self) -> ssl.SSLContext:
        """Context whose handshakes get a certificate for whatever name the client sends."""
        context = self._issue("no-server-name.invalid")

        def choose(connection: ssl.SSLObject | ssl.SSLSocket, name: str | None, _: ssl.SSLContext) -> None:
            connection.context = self.context(name)
            connection.asked_name = name  # type: ignore[union-attr]  # read by sites.Listener for its record

        context.sni_callback = choose
        return context
