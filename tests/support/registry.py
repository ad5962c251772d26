# SPDX-License-Identifier: BSD-4-Clause
"""A package registry on loopback, for pip and npm: what a test puts into it, and nothing else.

The closed network has none. Real pip and npm ask it, in real builds; the packages are a few bytes each.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Registry:
    """Files by path. `stall` holds every answer until it is cleared: a build can be caught in the middle."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.go = threading.Event()
        self.go.set()
        self.url = ""

    def wheel(self, name: str, version: str, needs: tuple[str, ...] = ()) -> str:
        """Add a pure Python wheel; returns its sha256."""
        head = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        head += "".join(f"Requires-Dist: {one}\n" for one in needs)
        info = f"{name}-{version}.dist-info"
        out = io.BytesIO()
        with zipfile.ZipFile(out, "w") as archive:
            archive.writestr(f"{name}/__init__.py", f"VERSION = {version!r}\n")
            archive.writestr(f"{info}/METADATA", head)
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")
        return self._python(name, f"{name}-{version}-py3-none-any.whl", out.getvalue())

    def source(self, name: str, version: str) -> str:
        """Add a source archive alone: it would run code of its own to be installed."""
        return self._python(name, f"{name}-{version}.tar.gz", _tar({f"{name}-{version}/setup.py": "raise SystemExit"}))

    def _python(self, name: str, file: str, data: bytes) -> str:
        digest = hashlib.sha256(data).hexdigest()
        self.files[f"/files/{file}"] = data
        page = self.files.get(f"/simple/{name}/", b"").decode()
        self.files[f"/simple/{name}/"] = (page + f'<a href="/files/{file}#sha256={digest}">{file}</a>\n').encode()
        return digest

    def npm(self, name: str, version: str, script: str = "") -> dict[str, Any]:
        """Add an npm package with one program of its name; returns its entry for a package-lock.json."""
        package: dict[str, Any] = {"name": name, "version": version, "bin": {name: "main.js"}}
        if script:
            package["scripts"] = {"install": script}
        main = "#!/usr/bin/env node\nconsole.log(require('fs').existsSync(__dirname + '/ran') ? 'ran' : 'not run')\n"
        data = _tar({"package/package.json": json.dumps(package), "package/main.js": main})
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
        path = f"/{name}/-/{name}-{version}.tgz"
        self.files[path] = data
        dist = {"tarball": f"{self.url}{path}", "integrity": integrity}
        versions = {version: {**package, "dist": dist, "hasInstallScript": bool(script)}}
        document = {"name": name, "dist-tags": {"latest": version}, "versions": versions}
        self.files[f"/{name}"] = json.dumps(document).encode()
        entry: dict[str, Any] = {"version": version, "integrity": integrity, "bin": {name: "main.js"}}
        return {**entry, "hasInstallScript": True} if script else entry

    @property
    def options(self) -> dict[str, str]:
        """Build settings that make pip and npm ask here."""
        return {"pip_index": f"{self.url}/simple/", "npm_registry": f"{self.url}/"}


def lock(**entries: dict[str, Any]) -> dict[str, str]:
    """package.json and package-lock.json of these packages."""
    wanted = {name: str(entry["version"]) for name, entry in entries.items()}
    head = {"name": "tools", "version": "1.0.0", "dependencies": wanted}
    rows = {"": head, **{f"node_modules/{name}": entry for name, entry in entries.items()}}
    document = {"name": "tools", "version": "1.0.0", "lockfileVersion": 3, "requires": True, "packages": rows}
    return {"package.json": json.dumps(head), "package-lock.json": json.dumps(document)}


def _tar(texts: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, text in texts.items():
            row = tarfile.TarInfo(name)
            row.size, row.mode = len(text), 0o755
            archive.addfile(row, io.BytesIO(text.encode()))
    return out.getvalue()


class _Handler(BaseHTTPRequestHandler):
    server: Any

    def log_message(self, format: str, *args: Any) -> None:
        """Silence: `asked` has it all."""

    def do_GET(self) -> None:
        """A file, or 404."""
        registry: Registry = self.server.registry
        path = self.path.partition("?")[0]
        registry.asked.append(path)
        registry.go.wait(120)
        data = registry.files.get(path)
        self.send_response(404 if data is None else 200)
        self.send_header("content-type", "text/html" if path.startswith("/simple/") else "application/octet-stream")
        self.send_header("content-length", str(len(data or b"")))
        self.end_headers()
        self.wfile.write(data or b"")


@contextmanager
def registry() -> Iterator[Registry]:
    """A registry that listens on loopback."""
    server: Any = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.registry = found = Registry()
    found.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield found
    finally:
        found.go.set()
        server.shutdown()
        server.server_close()
