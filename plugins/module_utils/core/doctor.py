# SPDX-License-Identifier: BSD-2-Clause
"""What this host can do for ASF: verdicts from facts.

``engine/hostfacts.py`` collects :class:`Facts`; :func:`verdicts` judges them and looks at nothing else. Each verdict
says its state, what was found, why it matters and what to do. `asf-play doctor`, ``playbooks/setup.yml`` and the set-up
of a checkout all show the same list. The checks lie by concern in ``doctor_user``, ``doctor_kernel``,
``doctor_engine`` and ``doctor_network``; what can be repaired by a command is in ``doctor_repair``.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import doctor_engine as engine, doctor_kernel as kernel, doctor_network as network, doctor_user as user
from .doctor_facts import Facts, Verdict

#: In the order in which things should be repaired.
_CHECKS = (
    user.account,
    kernel.kernel,
    kernel.userns,
    user.subids,
    user.run_dir,
    user.linger,
    engine.programs,
    engine.runtime,
    engine.advisories,
    network.uplink,
    network.nft,
    kernel.tun,
    engine.engine,
    engine.storage,
    engine.disk,
    user.leftovers,
    engine.seccomp,
    kernel.cgroup,
    user.limits,
    kernel.selinux,
    kernel.kvm,
    network.resolver,
    network.ipv6,
)


def line(verdict: Verdict) -> str:
    """One line of text: ``fail  subids: found. Why. Remedy``."""
    text = f"{verdict.state:<4} {verdict.id}: {verdict.found}"
    if verdict.state == "ok":
        return f"{text} ({verdict.why})"
    return f"{text}; {verdict.why}. Do: {verdict.remedy}" if verdict.remedy else f"{text}; {verdict.why}."


def verdicts(facts: Facts) -> list[Verdict]:
    """Judge `facts`; the order is that in which things should be repaired."""
    return [verdict for check in _CHECKS for verdict in check(facts)]


def ready(found: Sequence[Verdict]) -> bool:
    """True when nothing failed."""
    return all(verdict.state != "fail" for verdict in found)
