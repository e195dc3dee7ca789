"""Whether a source is one of the generator's own, so that a held-out one is known wherever it turns up."""

from __future__ import annotations

import re
from functools import lru_cache
from string import Formatter

from envs.tasks.bug_repair.bugs import Family
from envs.tasks.bug_repair.generator import FAMILIES, split_of


def is_heldout(source: str) -> bool:
    """The generator could draw this source, and it belongs to the held-out split. Blanks at line ends do not matter."""
    plain = "\n".join(line.rstrip() for line in source.strip().splitlines()) + "\n"
    return split_of(plain) == "heldout" and any(pattern.fullmatch(plain) for pattern in _drawn())


@lru_cache(maxsize=1)
def _drawn() -> tuple[re.Pattern[str], ...]:
    """One pattern for each bug of each family, over all names."""
    return tuple(
        _pattern(family, family.source.replace(bug.right, bug.wrong, 1)) for family in FAMILIES for bug in family.bugs
    )


def _pattern(family: Family, template: str) -> re.Pattern[str]:
    parts: list[str] = []
    seen: set[str] = set()
    for text, name, _, _ in Formatter().parse(template):
        parts.append(re.escape(text))
        if name is None:
            continue
        if name == "g":
            parts.append(re.escape(family.helper))
        elif name in seen:
            parts.append(f"(?P={name})")
        else:
            seen.add(name)
            names = "|".join(family.names) if name == "f" else r"[a-z]+"
            parts.append(f"(?P<{name}>{names})")
    return re.compile("".join(parts))
