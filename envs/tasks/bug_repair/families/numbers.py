"""Functions of numbers."""

from __future__ import annotations

from envs.tasks.bug_repair.bugs import Bug, BugKind, Family

OPERATOR = BugKind.WRONG_OPERATOR
SWAPPED = BugKind.SWAPPED_ARGUMENTS
OFF_BY_ONE = BugKind.OFF_BY_ONE
COMPARISON = BugKind.WRONG_COMPARISON
CONSTANT = BugKind.WRONG_CONSTANT
RETURN = BugKind.MISSING_RETURN
VARIABLE = BugKind.WRONG_VARIABLE
INVERTED = BugKind.INVERTED_CONDITION
DEFAULT = BugKind.WRONG_DEFAULT

FAMILIES: tuple[Family, ...] = (
    Family(
        names=("add", "plus"),
        source="def {f}({a}, {b}):\n    return {a} + {b}\n",
        arguments=("number", "number"),
        bugs=(
            Bug(OPERATOR, "{a} + {b}", "{a} - {b}"),
            Bug(OPERATOR, "{a} + {b}", "{a} * {b}"),
            Bug(VARIABLE, "{a} + {b}", "{a} + {a}"),
            Bug(RETURN, "return {a}", "{a}"),
        ),
    ),
    Family(
        names=("subtract", "minus"),
        source="def {f}({a}, {b}):\n    return {a} - {b}\n",
        arguments=("number", "number"),
        bugs=(
            Bug(OPERATOR, "{a} - {b}", "{a} + {b}"),
            Bug(SWAPPED, "{a} - {b}", "{b} - {a}"),
            Bug(RETURN, "return {a}", "{a}"),
        ),
    ),
    Family(
        names=("multiply", "times"),
        source="def {f}({a}, {b}):\n    return {a} * {b}\n",
        arguments=("number", "number"),
        bugs=(
            Bug(OPERATOR, "{a} * {b}", "{a} + {b}"),
            Bug(VARIABLE, "{a} * {b}", "{a} * {a}"),
            Bug(RETURN, "return {a}", "{a}"),
        ),
    ),
    Family(
        names=("divide", "quotient"),
        source="def {f}({a}, {b}):\n    return {a} // {b}\n",
        arguments=("positive", "positive"),
        bugs=(
            Bug(OPERATOR, "{a} // {b}", "{a} % {b}"),
            Bug(SWAPPED, "{a} // {b}", "{b} // {a}"),
            Bug(OPERATOR, "{a} // {b}", "{a} * {b}"),
        ),
    ),
    Family(
        names=("remainder", "modulo"),
        source="def {f}({a}, {b}):\n    return {a} % {b}\n",
        arguments=("positive", "positive"),
        bugs=(
            Bug(OPERATOR, "{a} % {b}", "{a} // {b}"),
            Bug(SWAPPED, "{a} % {b}", "{b} % {a}"),
        ),
    ),
    Family(
        names=("square", "squared"),
        source="def {f}({a}):\n    return {a} * {a}\n",
        arguments=("number",),
        bugs=(
            Bug(OPERATOR, "{a} * {a}", "{a} + {a}"),
            Bug(RETURN, "return {a}", "{a}"),
        ),
    ),
    Family(
        names=("double", "twice"),
        source="def {f}({a}):\n    return {a} * 2\n",
        arguments=("number",),
        bugs=(
            Bug(CONSTANT, "{a} * 2", "{a} * 3"),
            Bug(OPERATOR, "{a} * 2", "{a} + 2"),
            Bug(RETURN, "return {a}", "{a}"),
        ),
    ),
    Family(
        names=("half", "halve"),
        source="def {f}({a}):\n    return {a} // 2\n",
        arguments=("number",),
        bugs=(
            Bug(CONSTANT, "{a} // 2", "{a} // 3"),
            Bug(OPERATOR, "{a} // 2", "{a} % 2"),
            Bug(OPERATOR, "{a} // 2", "{a} * 2"),
        ),
    ),
    Family(
        names=("increment", "next_number"),
        source="def {f}({a}):\n    return {a} + 1\n",
        arguments=("number",),
        bugs=(
            Bug(OFF_BY_ONE, "{a} + 1", "{a} + 2"),
            Bug(OPERATOR, "{a} + 1", "{a} - 1"),
            Bug(RETURN, "return {a}", "{a}"),
        ),
    ),
    Family(
        names=("is_even", "even"),
        source="def {f}({a}):\n    return {a} % 2 == 0\n",
        arguments=("number",),
        bugs=(
            Bug(COMPARISON, "% 2 == 0", "% 2 != 0"),
            Bug(CONSTANT, "% 2 == 0", "% 3 == 0"),
            Bug(OPERATOR, "% 2 == 0", "// 2 == 0"),
        ),
    ),
    Family(
        names=("is_positive", "positive"),
        source="def {f}({a}):\n    return {a} > 0\n",
        arguments=("number",),
        bugs=(
            Bug(COMPARISON, "{a} > 0", "{a} < 0"),
            Bug(CONSTANT, "{a} > 0", "{a} > 3"),
            Bug(RETURN, "return {a}", "{a}"),
        ),
    ),
    Family(
        names=("is_bigger", "exceeds"),
        source="def {f}({a}, {b}):\n    return {a} > {b}\n",
        arguments=("number", "number"),
        bugs=(
            Bug(COMPARISON, "{a} > {b}", "{a} < {b}"),
            Bug(COMPARISON, "{a} > {b}", "{a} == {b}"),
            Bug(VARIABLE, "{a} > {b}", "{a} > {a}"),
        ),
    ),
    Family(
        names=("larger", "bigger"),
        source="def {f}({a}, {b}):\n    if {a} > {b}:\n        return {a}\n    return {b}\n",
        arguments=("number", "number"),
        bugs=(
            Bug(INVERTED, "if {a} > {b}", "if {a} < {b}"),
            Bug(VARIABLE, "    return {b}\n", "    return {a}\n"),
            Bug(COMPARISON, "if {a} > {b}", "if {a} == {b}"),
        ),
    ),
    Family(
        names=("smaller", "lesser"),
        source="def {f}({a}, {b}):\n    if {a} < {b}:\n        return {a}\n    return {b}\n",
        arguments=("number", "number"),
        bugs=(
            Bug(INVERTED, "if {a} < {b}", "if {a} > {b}"),
            Bug(VARIABLE, "    return {b}\n", "    return {a}\n"),
            Bug(COMPARISON, "if {a} < {b}", "if {a} == {b}"),
        ),
    ),
    Family(
        names=("absolute", "magnitude"),
        source="def {f}({a}):\n    if {a} < 0:\n        return -{a}\n    return {a}\n",
        arguments=("number",),
        bugs=(
            Bug(INVERTED, "if {a} < 0", "if {a} > 0"),
            Bug(OPERATOR, "return -{a}", "return +{a}"),
            Bug(CONSTANT, "return -{a}", "return 0"),
        ),
    ),
    Family(
        names=("at_least", "raise_to"),
        source="def {f}({a}, {b}=0):\n    if {a} < {b}:\n        return {b}\n    return {a}\n",
        arguments=("number",),
        bugs=(
            Bug(DEFAULT, "{b}=0", "{b}=4"),
            Bug(INVERTED, "if {a} < {b}", "if {a} > {b}"),
        ),
    ),
    Family(
        names=("between", "in_range"),
        source="def {f}({a}, {b}, {c}):\n    return {b} <= {a} <= {c}\n",
        arguments=("digit", "digit", "digit"),
        bugs=(
            Bug(SWAPPED, "{b} <= {a} <= {c}", "{c} <= {a} <= {b}"),
            Bug(COMPARISON, "{a} <= {c}", "{a} >= {c}"),
        ),
    ),
    Family(
        names=("power", "raised"),
        source="def {f}({a}, {b}=2):\n    return {a} ** {b}\n",
        arguments=("number",),
        bugs=(
            Bug(DEFAULT, "{b}=2", "{b}=3"),
            Bug(DEFAULT, "{b}=2", "{b}=1"),
            Bug(OPERATOR, "{a} ** {b}", "{a} * {b}"),
        ),
    ),
    Family(
        names=("scale", "magnify"),
        source="def {f}({a}, {b}=10):\n    return {a} * {b}\n",
        arguments=("number",),
        bugs=(
            Bug(DEFAULT, "{b}=10", "{b}=1"),
            Bug(DEFAULT, "{b}=10", "{b}=5"),
            Bug(OPERATOR, "{a} * {b}", "{a} + {b}"),
        ),
    ),
    Family(
        names=("midpoint", "middle"),
        source="def {f}({a}, {b}):\n    return ({a} + {b}) // 2\n",
        arguments=("number", "number"),
        bugs=(
            Bug(OPERATOR, "({a} + {b})", "({a} - {b})"),
            Bug(CONSTANT, "// 2", "// 3"),
            Bug(VARIABLE, "({a} + {b})", "({a} + {a})"),
        ),
    ),
    Family(
        names=("last_digit", "ones"),
        source="def {f}({a}):\n    return {a} % 10\n",
        arguments=("large",),
        bugs=(
            Bug(OPERATOR, "{a} % 10", "{a} // 10"),
            Bug(CONSTANT, "{a} % 10", "{a} % 5"),
        ),
    ),
    Family(
        names=("distance", "gap"),
        source="def {f}({a}, {b}):\n    if {a} > {b}:\n        return {a} - {b}\n    return {b} - {a}\n",
        arguments=("number", "number"),
        bugs=(
            Bug(INVERTED, "if {a} > {b}", "if {a} < {b}"),
            Bug(SWAPPED, "    return {b} - {a}", "    return {a} - {b}"),
            Bug(OPERATOR, "        return {a} - {b}", "        return {a} + {b}"),
        ),
    ),
    Family(
        names=("perimeter", "outline"),
        source="def {f}({a}, {b}):\n    return 2 * ({a} + {b})\n",
        arguments=("positive", "positive"),
        bugs=(
            Bug(OPERATOR, "({a} + {b})", "({a} * {b})"),
            Bug(CONSTANT, "return 2 *", "return 4 *"),
            Bug(VARIABLE, "({a} + {b})", "({b} + {b})"),
        ),
    ),
    Family(
        names=("sum_squares", "norm"),
        source="def {g}({a}):\n    return {a} * {a}\n\n\ndef {f}({a}, {b}):\n    return {g}({a}) + {g}({b})\n",
        arguments=("number", "number"),
        bugs=(
            Bug(OPERATOR, "{a} * {a}", "{a} + {a}"),
            Bug(OPERATOR, "({a}) + {g}", "({a}) - {g}"),
            Bug(VARIABLE, "+ {g}({b})", "+ {g}({a})"),
        ),
        helper="square",
    ),
)
