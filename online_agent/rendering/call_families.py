"""How model families write tool calls that SGLang's own parsers read. Hermes calls are read here (tool_calls.py).

Invariant: a parser only gets what holds whole calls. Some of them read a call that was cut off with half an argument,
or take an object inside the arguments of such a call for a call of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from json import JSONDecodeError, JSONDecoder

HERMES = "hermes"


def _all(text: str) -> int:
    """For forms whose parser itself takes whole calls only."""
    return len(text)


def _through_last(closer: str) -> Callable[[str], int]:
    """For forms in which ``closer`` ends each call."""
    return lambda text: text.rfind(closer) + len(closer) if closer in text else 0


_BETWEEN_OBJECTS = re.compile(r"[\s;]*(?=\{)")


def _through_last_object(text: str) -> int:
    """For JSON objects one after the other, from the first brace on, with ``;`` between them."""
    decoder, end, start = JSONDecoder(), 0, text.find("{")
    while start >= 0:
        try:
            _, end = decoder.raw_decode(text, start)
        except (JSONDecodeError, RecursionError):
            break
        following = _BETWEEN_OBJECTS.match(text, end)
        start = following.end() if following else -1
    return end


@dataclass(frozen=True, slots=True)
class CallFamily:
    """``openers`` begin the calls of an answer wherever they stand, ``leading`` does where nothing stands before it.

    ``whole`` is how many characters of the calls may reach the parser. ``attempt`` matches what begins a call: once for
    each of them (``is_counted``), or once for all.
    """

    parser: str
    openers: tuple[str, ...]
    attempt: re.Pattern[str]
    forced: str
    forced_name: str
    whole: Callable[[str], int] = _all
    leading: str = ""
    ending: str = ""
    is_counted: bool = False

    def find(self, text: str, *, is_first: bool) -> int:
        """Where calls begin in ``text``, -1 for nowhere. ``is_first``: nothing but white space was said before it."""
        if is_first and self.leading and text.lstrip().startswith(self.leading):
            return len(text) - len(text.lstrip())
        return min((at for opener in self.openers if (at := text.find(opener)) >= 0), default=-1)

    def rest(self, text: str) -> str:
        """What follows the whole calls, without the mark that ends the list of them."""
        return text[self.whole(text) :].replace(self.ending, "") if self.ending else text[self.whole(text) :]

    def has_unread(self, text: str, num_read: int) -> bool:
        """Whether ``text`` begins more calls than were read."""
        num_begun = len(self.attempt.findall(text))
        return num_begun > num_read if self.is_counted else num_begun > 0 and num_read == 0

    def forced_beginning(self, name: str | None) -> str:
        """How an answer begins that has to be a call, of the tool ``name`` if there is one."""
        return self.forced if name is None else self.forced + self.forced_name.replace("NAME", name)


_DEEPSEEK, _DEEPSEEK_CALL = "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"
_DEEPSEEK_END = "<｜tool▁call▁end｜>"
_KIMI, _KIMI_CALL = "<|tool_calls_section_begin|>", "<|tool_call_begin|>"

FAMILIES: dict[str, CallFamily] = {
    "llama3": CallFamily(
        "llama3",
        ("<|python_tag|>",),
        re.compile(r"<\|python_tag\|>|^\s*\{"),
        '<|python_tag|>{"name": "',
        'NAME", "parameters": ',
        _through_last_object,
        leading="{",
    ),
    "mistral": CallFamily(
        "mistral", ("[TOOL_CALLS",), re.compile(r"\[TOOL_CALLS"), '[TOOL_CALLS] [{"name": "', 'NAME", "arguments": '
    ),
    "pythonic": CallFamily("pythonic", ("[",), re.compile(r"\[\s*[A-Za-z]\w*\("), "[", "NAME("),
    "deepseekv3": CallFamily(
        "deepseekv3",
        (_DEEPSEEK,),
        re.compile(_DEEPSEEK_CALL),
        f"{_DEEPSEEK}{_DEEPSEEK_CALL}function<｜tool▁sep｜>",
        "NAME\n```json\n",
        _through_last(_DEEPSEEK_END),
        ending="<｜tool▁calls▁end｜>",
        is_counted=True,
    ),
    "deepseekv31": CallFamily(
        "deepseekv31",
        (_DEEPSEEK,),
        re.compile(_DEEPSEEK_CALL),
        f"{_DEEPSEEK}{_DEEPSEEK_CALL}",
        "NAME<｜tool▁sep｜>",
        _through_last(_DEEPSEEK_END),
        ending="<｜tool▁calls▁end｜>",
        is_counted=True,
    ),
    "kimi_k2": CallFamily(
        "kimi_k2",
        (_KIMI,),
        re.compile(re.escape(_KIMI_CALL)),
        f"{_KIMI}{_KIMI_CALL}functions.",
        "NAME:0<|tool_call_argument_begin|>",
        _through_last("<|tool_call_end|>"),
        ending="<|tool_calls_section_end|>",
        is_counted=True,
    ),
    "qwen3_coder": CallFamily(
        "qwen3_coder",
        ("<tool_call>",),
        re.compile("<tool_call>"),
        "<tool_call>\n<function=",
        "NAME>\n",
        _through_last("</tool_call>"),
        is_counted=True,
    ),
    "glm45": CallFamily(
        "glm45",
        ("<tool_call>",),
        re.compile("<tool_call>"),
        "<tool_call>",
        "NAME\n",
        _through_last("</tool_call>"),
        is_counted=True,
    ),
}

MARKS: dict[str, tuple[str, ...]] = {
    HERMES: ("<tool_call>",),
    "llama3": ("<|python_tag|>",),
    "mistral": ("[TOOL_CALLS",),
    "deepseekv3": (_DEEPSEEK,),
    "kimi_k2": (_KIMI,),
}
"""What gives a family away in the text of an answer, by one of the families that write it so."""


def foreign_family(text: str, family: str) -> str | None:
    """Another family whose calls the text seems to hold, though it was read as one of ``family``; else None."""
    own = FAMILIES[family].openers if family in FAMILIES else MARKS[HERMES]
    for name, marks in MARKS.items():
        if any(mark in text and mark not in own for mark in marks):
            return name
    return None
