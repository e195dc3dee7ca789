"""Functions of strings."""

from __future__ import annotations

from envs.tasks.bug_repair.bugs import Bug, BugKind, Family

SWAPPED = BugKind.SWAPPED_ARGUMENTS
OFF_BY_ONE = BugKind.OFF_BY_ONE
COMPARISON = BugKind.WRONG_COMPARISON
CONSTANT = BugKind.WRONG_CONSTANT
RETURN = BugKind.MISSING_RETURN
DEFAULT = BugKind.WRONG_DEFAULT
SLICE = BugKind.WRONG_SLICE
METHOD = BugKind.WRONG_METHOD

FAMILIES: tuple[Family, ...] = (
    Family(
        names=("shout", "loud"),
        source="def {f}({s}):\n    return {s}.upper()\n",
        arguments=("word",),
        bugs=(
            Bug(METHOD, ".upper()", ".lower()"),
            Bug(METHOD, ".upper()", ".title()"),
            Bug(RETURN, "return {s}", "{s}"),
        ),
    ),
    Family(
        names=("whisper", "quiet"),
        source="def {f}({s}):\n    return {s}.lower()\n",
        arguments=("name",),
        bugs=(
            Bug(METHOD, ".lower()", ".upper()"),
            Bug(METHOD, ".lower()", ".strip()"),
            Bug(RETURN, "return {s}", "{s}"),
        ),
    ),
    Family(
        names=("initial", "first_letter"),
        source="def {f}({s}):\n    return {s}[0]\n",
        arguments=("word",),
        bugs=(
            Bug(OFF_BY_ONE, "[0]", "[1]"),
            Bug(CONSTANT, "[0]", "[-1]"),
        ),
    ),
    Family(
        names=("backwards", "mirror"),
        source="def {f}({s}):\n    return {s}[::-1]\n",
        arguments=("word",),
        bugs=(
            Bug(SLICE, "[::-1]", "[::-2]"),
            Bug(SLICE, "[::-1]", "[:-1]"),
        ),
    ),
    Family(
        names=("greet", "welcome"),
        source="def {f}({s}):\n    return 'hi ' + {s}\n",
        arguments=("name",),
        bugs=(
            Bug(SWAPPED, "'hi ' + {s}", "{s} + 'hi '"),
            Bug(CONSTANT, "'hi '", "'bye '"),
        ),
    ),
    Family(
        names=("repeat", "echo"),
        source="def {f}({s}, {a}=2):\n    return {s} * {a}\n",
        arguments=("word",),
        bugs=(
            Bug(DEFAULT, "{a}=2", "{a}=3"),
            Bug(DEFAULT, "{a}=2", "{a}=1"),
        ),
    ),
    Family(
        names=("ends_with", "has_ending"),
        source="def {f}({s}, {v}):\n    return {s}.endswith({v})\n",
        arguments=("word", "letter"),
        bugs=(
            Bug(METHOD, ".endswith(", ".startswith("),
            Bug(METHOD, ".endswith(", ".count("),
        ),
    ),
    Family(
        names=("count_letter", "num_letter"),
        source="def {f}({s}, {v}):\n    return {s}.count({v})\n",
        arguments=("word", "letter"),
        bugs=(
            Bug(METHOD, ".count(", ".find("),
            Bug(SWAPPED, "{s}.count({v})", "{v}.count({s})"),
        ),
    ),
    Family(
        names=("is_empty", "blank"),
        source="def {f}({s}):\n    return len({s}) == 0\n",
        arguments=("maybe_word",),
        bugs=(
            Bug(COMPARISON, "== 0", "!= 0"),
            Bug(OFF_BY_ONE, "== 0", "== 1"),
        ),
    ),
)
