# SPDX-License-Identifier: BSD-4-Clause
"""Text for people: phases, the probe table, errors, lists. Every string from outside is escaped here."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any, NamedTuple

_CODES = {"green": "32", "red": "31", "yellow": "33", "dim": "2", "bold": "1"}
_VERDICTS = {"pass": "green", "fail": "red", "inconclusive": "red", "warn": "yellow"}
_STATES = {"ok": "green", "pass": "green", "warn": "yellow", "fail": "red", "missing": "red", "bad": "red"}


#: A column of a table is not cut below this many characters.
_NARROWEST = 7
#: Lines of a message beyond the first that are shown.
_MESSAGE_LINES = 40


class Style(NamedTuple):
    """What the stream can show."""

    colour: bool = False
    unicode: bool = False
    #: Columns of the terminal; 0 where lines may be as long as they like.
    width: int = 0

    def paint(self, text: str, name: str) -> str:
        return f"\x1b[{_CODES[name]}m{text}\x1b[0m" if self.colour and name in _CODES else text


def live(stream: IO[str], env: Mapping[str, str]) -> bool:
    """Whether lines on the stream may be updated in place: a terminal that is not dumb."""
    return stream.isatty() and env.get("TERM", "dumb") != "dumb"


def style(stream: IO[str], env: Mapping[str, str]) -> Style:
    """What the stream can show. Colour: a terminal, and no NO_COLOR (https://no-color.org)."""
    try:
        "✓✗▸".encode(getattr(stream, "encoding", None) or "ascii")
        plain = False
    except (UnicodeEncodeError, LookupError):
        plain = True
    return Style(live(stream, env) and not env.get("NO_COLOR"), not plain, _columns(stream, env))


def _columns(stream: IO[str], env: Mapping[str, str]) -> int:
    """Width of the terminal that the stream is; COLUMNS overrules it (environ(7)). 0 when it is none."""
    if not stream.isatty():
        return 0
    if env.get("COLUMNS", "").isdecimal() and int(env["COLUMNS"]) > 0:
        return int(env["COLUMNS"])
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError):
        return 0


def safe(value: object, limit: int = 500) -> str:
    """Any value as one harmless line."""
    from asf_lib.core.escape import terminal

    return str(terminal("" if value is None else value, limit))


def phase_line(name: str, seconds: float, ok: bool, style: Style) -> str:
    """A phase that is over."""
    mark = ("✓" if ok else "✗") if style.unicode else ("ok" if ok else "FAILED")
    return f"{style.paint(mark, 'green' if ok else 'red')} {safe(name, 40):<12} {seconds:7.2f} s"


def phase_started(name: str, text: str) -> str:
    """A phase that takes long, where lines cannot be updated."""
    return f"   {safe(name, 40)}: {safe(text, 200)}"


def notice(text: str) -> str:
    """What a module says to the person who waits."""
    return f"   {safe(text, 400)}"


def phase_running(name: str, text: str, seconds: float, style: Style, width: int) -> str:
    """The updated line of a phase that runs, never wider than the terminal."""
    mark = "▸" if style.unicode else ">"
    plain = f"{mark} {safe(name, 40):<12} {seconds:7.1f} s  {safe(text, 300)}"
    return plain[: max(10, width - 1)]


def probe_table(probes: Sequence[Mapping[str, Any]], style: Style, evidence: bool = False) -> list[str]:
    """One line per probe, those that did not pass with their evidence below (with ``evidence``: all)."""
    rows = [
        (
            safe(probe.get("verdict"), 14),
            safe(probe.get("id"), 40),
            safe(probe.get("vantage"), 10),
            safe(probe.get("invariant"), 6),
            safe(probe.get("expect"), 90),
        )
        for probe in probes
    ]
    head = ("verdict", "probe", "vantage", "inv", "expectation")
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(4)]
    lines = [style.paint(_cells(head, widths), "bold")]
    for probe, row in zip(probes, rows, strict=True):
        verdict = style.paint(f"{row[0]:<{widths[0]}}", _VERDICTS.get(row[0], "red"))
        lines.append(f"{verdict}  " + _cells(row[1:], widths[1:]))
        if row[0] != "pass" or evidence:
            lines += _indented(probe.get("evidence"))
    return [*lines, probe_summary(probes, style)]


def probes_in_brief(probes: Sequence[Mapping[str, Any]], style: Style) -> list[str]:
    """The probes that did not pass, with their evidence, and how many gave which verdict."""
    told = [probe for probe in probes if probe.get("verdict") != "pass"]
    lines = probe_table(told, style)[:-1] if told else []
    return [*lines, f"{probe_summary(probes, style)} (-v shows each)"]


def probe_summary(probes: Sequence[Mapping[str, Any]], style: Style) -> str:
    """How many probes gave which verdict."""
    counts: dict[str, int] = {}
    for probe in probes:
        verdict = safe(probe.get("verdict"), 14)
        counts[verdict] = counts.get(verdict, 0) + 1
    worst = next((word for word in ("fail", "inconclusive", "warn") if word in counts), "pass")
    text = ", ".join(f"{number} {verdict}" for verdict, number in sorted(counts.items(), key=lambda item: item[0]))
    return style.paint(f"{len(probes)} probes: {text}", _VERDICTS[worst])


def _cells(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [f"{cell:<{width}}" for cell, width in zip(cells[: len(widths)], widths, strict=True)]
    return "  ".join([*padded, *cells[len(widths) :]]).rstrip()


def _indented(evidence: object) -> list[str]:
    if evidence in (None, "", {}, []):
        return []
    if isinstance(evidence, Mapping):
        return [
            f"    {safe(key, 40)}: {safe(value, 300)}" for key, value in evidence.items() if value not in (None, "")
        ]
    return [f"    {safe(evidence, 400)}"]


def error(fields: Mapping[str, Any], style: Style) -> list[str]:
    """An error: what is wrong, where, what was found, what to do; then the other problems of the same input."""
    problems = fields.get("problems")
    if isinstance(problems, list) and problems:
        lines = [line for problem in problems if isinstance(problem, Mapping) for line in _problem(problem, style)]
    else:
        lines = _problem(fields, style)
    stderr = str(fields.get("stderr") or "").strip()
    if stderr and stderr not in str(fields.get("message")):
        lines += [f"    {safe(line, 300)}" for line in stderr.splitlines()[-8:]]
    return lines


def _problem(fields: Mapping[str, Any], style: Style) -> list[str]:
    place = ":".join(safe(fields[key], 300) for key in ("file", "line", "column") if fields.get(key) not in (None, ""))
    said, *more = str(fields.get("message") or "").splitlines() or [""]
    head = ": ".join(part for part in (place, safe(fields.get("key"), 200), safe(said, 1500)) if part)
    lines = [f"{style.paint('error:', 'red')} {head}", *(f"    {safe(line, 500)}" for line in more[:_MESSAGE_LINES])]
    for word in ("found", "allowed", "remedy"):
        if fields.get(word) not in (None, ""):
            lines.append(f"  {word}: {safe(fields[word], 600)}")
    return lines


def warning(text: object, style: Style) -> str:
    """A warning: plain text, or a mapping with ``message`` and perhaps ``key``."""
    if isinstance(text, Mapping):
        key = safe(text.get("key"), 200)
        text = f"{key}: {text.get('message')}" if key else text.get("message")
    return f"{style.paint('warning:', 'yellow')} {safe(text, 800)}"


def note(text: object, style: Style) -> str:
    """Something that was done beside what was asked for."""
    return f"{style.paint('note:', 'bold')} {safe(text, 800)}"


def result(asf: Mapping[str, Any], style: Style, evidence: bool, brief: bool = False) -> list[str]:
    """What a run of a playbook found: probes (``brief``: those that did not pass), sessions, cleanup, evidence."""
    lines: list[str] = []
    if asf.get("probes"):
        lines += probes_in_brief(asf["probes"], style) if brief else probe_table(asf["probes"], style, evidence)
    if isinstance(asf.get("status"), Mapping):
        from .sessionview import session

        lines += session(asf["status"], style)
    elif isinstance(asf.get("sessions"), list):
        lines += sessions(asf["sessions"], style)
    if isinstance(asf.get("cleanup"), Mapping):
        lines += [safe(action, 300) for action in asf["cleanup"].get("actions", [])]
    lines += [safe(action, 300) for action in asf.get("actions") or []]
    lines += [f"{word}: {safe(asf[word], 300)}" for word in ("session", "evidence", "head") if asf.get(word)]
    return lines


def sessions(rows: Sequence[Mapping[str, Any]], style: Style) -> list[str]:
    """The table of sessions; why one is broken stands below it."""
    if not rows:
        return ["no session owns anything"]
    head = ("session", "state", "age", "mode", "isolation", "requests", "denied", "tokens", "cost")
    cells = [
        [row.get("session"), _state(row)]
        + [span(row.get("age_s"))]
        + [row.get(key) for key in ("mode", "isolation", "requests", "denied", "tokens")]
        + [dollars(row.get("cost_usd"))]
        for row in rows
    ]
    lines = table(head, cells, style)
    for row in rows:
        for reason in row.get("reasons") or []:
            lines += wrapped(f"{safe(row.get('session'), 130)}: {safe(reason, 300)}", style)
    broken = [safe(row.get("session"), 130) for row in rows if row.get("state") == "broken"]
    if broken:
        agent, _dot, name = broken[0].partition(".")
        remedy = f"asf-play close.yml -e agent={agent} -e session={name}"
        lines += wrapped(f"to remove what is left of {broken[0]}: {remedy}", style)
    return lines


def dollars(amount: object) -> str:
    """An amount of money, small ones to the hundredth of a cent; empty when there is none."""
    if not isinstance(amount, (int, float)):
        return ""
    return f"${amount:.4f}" if 0 < amount < 0.1 else f"${amount:.2f}"


def _state(row: Mapping[str, Any]) -> str:
    """The state's word; of a workload that ended, with its exit code."""
    code = row.get("exit_code")
    return str(row.get("state")) + ("" if code is None else f" ({code})")


def table(head: Sequence[str], rows: Iterable[Sequence[object]], style: Style) -> list[str]:
    """A plain table with a heading. On a narrow terminal wide columns are cut; where that is not enough, each row
    becomes a block of lines."""
    cells = [[safe(cell, 200) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in [list(head), *cells]) for column in range(len(head))]
    if style.width and sum(widths) + 2 * (len(widths) - 1) > style.width:
        least = [min(width, max(len(name), _NARROWEST)) for name, width in zip(head, widths, strict=True)]
        room = style.width - 2 * (len(widths) - 1)
        if sum(least) > room:
            return _blocks(head, cells, style)
        while sum(widths) > room:
            widest = max(range(len(widths)), key=lambda at: widths[at] - least[at])
            widths[widest] -= 1
        cells = [[fit(cell, width, style) for cell, width in zip(row, widths, strict=True)] for row in cells]
    return [style.paint(_cells(head, widths), "bold"), *(_cells(row, widths) for row in cells)]


def _blocks(head: Sequence[str], rows: Sequence[Sequence[str]], style: Style) -> list[str]:
    """Each row as lines ``name: value``; the first cell is its title."""
    lines = []
    for row in rows:
        lines.append(style.paint(fit(row[0], style.width, style), "bold"))
        told = [(name, cell) for name, cell in zip(head[1:], row[1:], strict=True) if cell]
        lines += [fit(f"  {name}: {cell}", style.width, style) for name, cell in told]
    return lines


def fit(text: str, width: int, style: Style) -> str:
    """Harmless text cut to the width (0: as it is); that it was cut is shown."""
    if not width or len(text) <= width:
        return text
    return text[: max(0, width - 1)] + ("…" if style.unicode else "~")


def wrapped(text: str, style: Style, indent: str = "  ") -> list[str]:
    """Harmless text as lines of the terminal's width, those after the first indented."""
    if not style.width or len(text) <= style.width:
        return [text]
    import textwrap

    return textwrap.wrap(text, max(20, style.width), subsequent_indent=indent, break_on_hyphens=False)


def span(seconds: object) -> str:
    """A length of time in two units at most."""
    if not isinstance(seconds, int):
        return ""
    minutes, hours = seconds // 60, seconds // 3600
    if hours >= 24:
        return f"{hours // 24} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min" if minutes else f"{seconds} s"


def checks(found: Sequence[Mapping[str, Any]], style: Style) -> list[str]:
    """What ``doctor`` found: one line each; why it matters and the remedy below those that are not in order."""
    width = max([len(safe(check.get("id"), 40)) for check in found] + [4])
    lines = []
    for check in found:
        state = safe(check.get("state"), 12)
        painted = style.paint(f"{state:<7}", _STATES.get(state, "yellow"))
        lines.append(f"{painted}  {safe(check.get('id'), 40):<{width}}  {safe(check.get('found'), 300)}")
        if state != "ok":
            lines += [f"         {word}: {safe(check[word], 1000)}" for word in ("why", "remedy") if check.get(word)]
    return lines
