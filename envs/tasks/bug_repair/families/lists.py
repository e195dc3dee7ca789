"""Functions of lists: loops, slices and built-ins."""

from __future__ import annotations

from envs.tasks.bug_repair.bugs import Bug, BugKind, Family

OPERATOR = BugKind.WRONG_OPERATOR
SWAPPED = BugKind.SWAPPED_ARGUMENTS
OFF_BY_ONE = BugKind.OFF_BY_ONE
COMPARISON = BugKind.WRONG_COMPARISON
CONSTANT = BugKind.WRONG_CONSTANT
VARIABLE = BugKind.WRONG_VARIABLE
INVERTED = BugKind.INVERTED_CONDITION
SLICE = BugKind.WRONG_SLICE
METHOD = BugKind.WRONG_METHOD
ACCUMULATOR = BugKind.WRONG_ACCUMULATOR

FAMILIES: tuple[Family, ...] = (
    Family(
        names=("total", "add_all"),
        source="def {f}({xs}):\n    {acc} = 0\n    for {v} in {xs}:\n        {acc} += {v}\n    return {acc}\n",
        arguments=("numbers",),
        bugs=(
            Bug(ACCUMULATOR, "{acc} = 0", "{acc} = 1"),
            Bug(OPERATOR, "{acc} += {v}", "{acc} -= {v}"),
            Bug(ACCUMULATOR, "{acc} += {v}", "{acc} = {v}"),
            Bug(VARIABLE, "return {acc}", "return {v}"),
        ),
    ),
    Family(
        names=("product", "multiply_all"),
        source="def {f}({xs}):\n    {acc} = 1\n    for {v} in {xs}:\n        {acc} *= {v}\n    return {acc}\n",
        arguments=("digits",),
        bugs=(
            Bug(ACCUMULATOR, "{acc} = 1", "{acc} = 0"),
            Bug(OPERATOR, "{acc} *= {v}", "{acc} += {v}"),
            Bug(ACCUMULATOR, "{acc} *= {v}", "{acc} = {v}"),
        ),
    ),
    Family(
        names=("count_positive", "num_positive"),
        source=(
            "def {f}({xs}):\n    {acc} = 0\n    for {v} in {xs}:\n        if {v} > 0:\n"
            "            {acc} += 1\n    return {acc}\n"
        ),
        arguments=("numbers",),
        bugs=(
            Bug(INVERTED, "if {v} > 0", "if {v} < 0"),
            Bug(ACCUMULATOR, "{acc} += 1", "{acc} += {v}"),
            Bug(OFF_BY_ONE, "{acc} = 0", "{acc} = 1"),
            Bug(CONSTANT, "if {v} > 0", "if {v} > 3"),
        ),
    ),
    Family(
        names=("largest", "highest"),
        source=(
            "def {f}({xs}):\n    {acc} = {xs}[0]\n    for {v} in {xs}:\n        if {v} > {acc}:\n"
            "            {acc} = {v}\n    return {acc}\n"
        ),
        arguments=("numbers",),
        bugs=(
            Bug(INVERTED, "if {v} > {acc}", "if {v} < {acc}"),
            Bug(VARIABLE, "return {acc}", "return {v}"),
            Bug(COMPARISON, "if {v} > {acc}", "if {v} == {acc}"),
        ),
    ),
    Family(
        names=("smallest", "lowest"),
        source=(
            "def {f}({xs}):\n    {acc} = {xs}[0]\n    for {v} in {xs}:\n        if {v} < {acc}:\n"
            "            {acc} = {v}\n    return {acc}\n"
        ),
        arguments=("numbers",),
        bugs=(
            Bug(INVERTED, "if {v} < {acc}", "if {v} > {acc}"),
            Bug(VARIABLE, "return {acc}", "return {v}"),
            Bug(COMPARISON, "if {v} < {acc}", "if {v} == {acc}"),
        ),
    ),
    Family(
        names=("count_equal", "occurrences"),
        source=(
            "def {f}({xs}, {a}):\n    {acc} = 0\n    for {v} in {xs}:\n        if {v} == {a}:\n"
            "            {acc} += 1\n    return {acc}\n"
        ),
        arguments=("digits", "digit"),
        bugs=(
            Bug(COMPARISON, "if {v} == {a}", "if {v} != {a}"),
            Bug(ACCUMULATOR, "{acc} += 1", "{acc} += 2"),
            Bug(OFF_BY_ONE, "{acc} = 0", "{acc} = 1"),
        ),
    ),
    Family(
        names=("first", "head"),
        source="def {f}({xs}):\n    return {xs}[0]\n",
        arguments=("numbers",),
        bugs=(
            Bug(OFF_BY_ONE, "[0]", "[1]"),
            Bug(CONSTANT, "[0]", "[-1]"),
        ),
    ),
    Family(
        names=("last", "final"),
        source="def {f}({xs}):\n    return {xs}[-1]\n",
        arguments=("numbers",),
        bugs=(
            Bug(OFF_BY_ONE, "[-1]", "[-2]"),
            Bug(CONSTANT, "[-1]", "[0]"),
        ),
    ),
    Family(
        names=("rest", "tail"),
        source="def {f}({xs}):\n    return {xs}[1:]\n",
        arguments=("numbers",),
        bugs=(
            Bug(SLICE, "[1:]", "[:1]"),
            Bug(OFF_BY_ONE, "[1:]", "[2:]"),
        ),
    ),
    Family(
        names=("take", "first_few"),
        source="def {f}({xs}, {a}):\n    return {xs}[:{a}]\n",
        arguments=("numbers", "index"),
        bugs=(
            Bug(SLICE, "[:{a}]", "[{a}:]"),
            Bug(SLICE, "[:{a}]", "[-{a}:]"),
        ),
    ),
    Family(
        names=("drop", "skip"),
        source="def {f}({xs}, {a}):\n    return {xs}[{a}:]\n",
        arguments=("numbers", "index"),
        bugs=(
            Bug(SLICE, "[{a}:]", "[:{a}]"),
            Bug(SLICE, "[{a}:]", "[:-{a}]"),
        ),
    ),
    Family(
        names=("drop_last", "without_last"),
        source="def {f}({xs}):\n    return {xs}[:-1]\n",
        arguments=("numbers",),
        bugs=(
            Bug(SLICE, "[:-1]", "[-1:]"),
            Bug(OFF_BY_ONE, "[:-1]", "[:-2]"),
        ),
    ),
    Family(
        names=("reverse", "flipped"),
        source="def {f}({xs}):\n    return {xs}[::-1]\n",
        arguments=("numbers",),
        bugs=(
            Bug(SLICE, "[::-1]", "[::-2]"),
            Bug(SLICE, "[::-1]", "[::1]"),
        ),
    ),
    Family(
        names=("spread", "extent"),
        source="def {f}({xs}):\n    return max({xs}) - min({xs})\n",
        arguments=("numbers",),
        bugs=(
            Bug(OPERATOR, ") - min", ") + min"),
            Bug(METHOD, "max({xs})", "sum({xs})"),
        ),
    ),
    Family(
        names=("average", "mean"),
        source="def {f}({xs}):\n    return sum({xs}) // len({xs})\n",
        arguments=("numbers",),
        bugs=(
            Bug(METHOD, "sum({xs})", "max({xs})"),
            Bug(OPERATOR, ") // len", ") - len"),
        ),
    ),
    Family(
        names=("count_up", "numbers_to"),
        source="def {f}({a}):\n    return list(range(1, {a} + 1))\n",
        arguments=("digit",),
        bugs=(
            Bug(OFF_BY_ONE, "{a} + 1", "{a} - 1"),
            Bug(CONSTANT, "range(1,", "range(0,"),
        ),
    ),
    Family(
        names=("doubled", "double_all"),
        source="def {f}({xs}):\n    return [{v} * 2 for {v} in {xs}]\n",
        arguments=("numbers",),
        bugs=(
            Bug(OPERATOR, "{v} * 2", "{v} + 2"),
            Bug(CONSTANT, "{v} * 2", "{v} * 3"),
        ),
    ),
    Family(
        names=("keep_positive", "positives"),
        source="def {f}({xs}):\n    return [{v} for {v} in {xs} if {v} > 0]\n",
        arguments=("numbers",),
        bugs=(
            Bug(COMPARISON, "if {v} > 0", "if {v} < 0"),
            Bug(CONSTANT, "if {v} > 0", "if {v} > 3"),
        ),
    ),
    Family(
        names=("with_end", "put_last"),
        source="def {f}({xs}, {a}):\n    return {xs} + [{a}]\n",
        arguments=("numbers", "digit"),
        bugs=(
            Bug(SWAPPED, "{xs} + [{a}]", "[{a}] + {xs}"),
            Bug(OPERATOR, "{xs} + [{a}]", "{xs} * {a}"),
        ),
    ),
    Family(
        names=("count_even", "num_even"),
        source=(
            "def {g}({a}):\n    return {a} % 2 == 0\n\n\ndef {f}({xs}):\n    return sum({g}({v}) for {v} in {xs})\n"
        ),
        arguments=("numbers",),
        bugs=(
            Bug(COMPARISON, "% 2 == 0", "% 2 != 0"),
            Bug(METHOD, "sum(", "max("),
        ),
        helper="is_even",
    ),
)
