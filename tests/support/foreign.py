# SPDX-License-Identifier: BSD-4-Clause
"""What belongs to somebody else and has a name, or a label, that is almost a session's."""

from __future__ import annotations

from support.crash_lab import Lab
from support.product import podman, remove, run


class Foreign:
    """Things with names, or labels, that are almost a session's. `check()` says which were touched."""

    def __init__(self, lab: Lab, agent: str, image: str) -> None:
        session = lab.id(agent)
        self.name = f"asf-{session}-foreign"
        labels = [f"--label=asf.session={session}", "--label=asf.owner=4294967294"]
        podman("create", f"--name={self.name}", "--network=none", *labels, image, "true")
        podman("create", f"--name=asf-{session}2-agent", "--network=none", image, "true")
        podman("volume", "create", *labels, self.name)
        for secret in (self.name, f"asf-{session}-tokens", f"{session}-token"):
            podman("secret", "create", secret, "-", stdin="of somebody else")
        podman("network", "create", "--internal", "--disable-dns", self.name)
        self.containers = [self.name, f"asf-{session}2-agent"]
        self.secrets = [self.name, f"asf-{session}-tokens", f"{session}-token"]
        self.before = self._look()

    def _look(self) -> set[str]:
        lists = (
            podman("ps", "-a", "--format", "container {{.ID}} {{.Names}}"),
            podman("volume", "ls", "--format", "volume {{.Name}}"),
            podman("secret", "ls", "--format", "secret {{.ID}} {{.Name}}"),
            podman("network", "ls", "--format", "network {{.Name}}"),
        )
        own = {*self.containers, *self.secrets}
        return {line for text in lists for line in text.splitlines() if line.split()[-1] in own}

    def check(self) -> list[str]:
        """Those that are gone or not the same any more."""
        return [f"foreign {line} was touched" for line in sorted(self.before - self._look())]

    def remove(self) -> None:
        """Away with them."""
        remove(*self.containers)
        podman("volume", "rm", "-f", self.name, check=False)
        podman("network", "rm", "-f", self.name, check=False)
        for secret in self.secrets:
            podman("secret", "rm", secret, check=False)


def image() -> str:
    """Some image that is there."""
    return run(["podman", "images", "-q"]).out.split()[0]
