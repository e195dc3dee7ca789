"""Other people's agents, served and recorded: a call comes in with its whole history, its answer is a turn."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from online_agent.agent.interruption import Interrupter
from online_agent.config.serving import AgentSettings, GatewaySettings
from online_agent.errors import BadInput, Busy, Conflict, NotFound, UnknownName
from online_agent.gateway.answer_reader import AnswerReader
from online_agent.gateway.call_watch import CallWatch, TellCalls
from online_agent.gateway.calls import CallAnswer, Caller, ChatCall
from online_agent.gateway.capture import Capture, Captured, Opening
from online_agent.gateway.exchange import Exchange
from online_agent.gateway.interruptible import InterruptibleChoice
from online_agent.gateway.markup import THINK_OPEN
from online_agent.gateway.prompts import Prompt, PromptBuilder
from online_agent.gateway.recall import RecalledExchange, recall
from online_agent.gateway.sampler import ChoiceSampler, Engine, EngineAsk, ParseCalls
from online_agent.gateway.secrets import Secrets
from online_agent.redaction import Redactor
from online_agent.rendering import ChatRenderer, tool_schema_hash
from online_agent.rendering.call_families import FAMILIES
from online_agent.rendering.tool_schemas import tool_schemas
from online_agent.store.records import CLIENT_ENV, ClientEpisodeRecord, CompletionLink, EpisodeNew, SeenEpisode
from online_agent.store.repositories.base import check_name, new_id
from online_agent.store.segments import TurnTree
from online_agent.store.session import Database, Transaction
from online_agent.store.threaded import ThreadedDatabase
from online_agent.telemetry import tracing
from online_agent.telemetry.logging import get_logger
from online_agent.types import Sampling, Span, ToolCall

log = get_logger(__name__)

_OUR_ID = re.compile(r"ep_[0-9a-f]{34}")
_ID_PREFIX = {"chat": "chatcmpl-", "messages": "msg_", "responses": "resp_"}
BUSY_RETRY_S = 1.0


class ContextTooLong(BadInput):
    """The history leaves no room for an answer."""

    code = "context_length_exceeded"


class ParsingEngine(Engine, Protocol):
    """An engine with parsers for the tool calls of model families."""

    async def parse_calls(self, text: str, parser: str, tools: Sequence[Mapping[str, Any]]) -> Sequence[ToolCall]: ...


class Gateway:
    """One per process, made inside its event loop. What has to outlive the process is in the database."""

    def __init__(
        self,
        db: Database,
        engine: ParsingEngine,
        renderer: ChatRenderer,
        settings: GatewaySettings,
        defaults: AgentSettings,
        threads: Executor,
        redactor: Redactor | None = None,
        interrupter: Interrupter | None = None,
        tell_calls: TellCalls = lambda num_read, num_unread: None,
    ) -> None:
        """With an ``interrupter`` the learner can pause what clients ask for, too."""
        self._db, self._engine, self._renderer = db, engine, renderer
        self._store = ThreadedDatabase(db, threads)
        self._settings, self._defaults, self._interrupter = settings, defaults, interrupter
        self._prompts = PromptBuilder(renderer, settings.tool_call_family)
        self._secrets = Secrets(redactor or Redactor.of(), renderer)
        self._capture = Capture(db, threads, self._secrets)
        self._watch = CallWatch(db, threads, settings.tool_call_family, tell_calls)
        self._under_way: dict[str, str] = {}
        """Ids of new episodes whose first answer is not stored yet, and their tenants."""
        self._num_in_flight = 0

    @property
    def model_name(self) -> str:
        return self._settings.model_name

    @property
    def renderer(self) -> ChatRenderer:
        return self._renderer

    @property
    def num_in_flight(self) -> int:
        return self._num_in_flight

    async def begin(self, caller: Caller, call: ChatCall) -> Exchange:
        """The call is under way. Raises UnknownName (model), NotFound or Conflict (episode), BadInput, Busy."""
        self._check_model(call)
        if self._num_in_flight >= self._settings.max_calls_in_flight:
            raise Busy(f"{self._num_in_flight} calls are under way", retry_after_s=BUSY_RETRY_S)
        self._num_in_flight += 1
        try:
            call = self._secrets.call(call)
            asked_at = self._db.clock()
            opening, prompt = await self._store.read(lambda tx: self._prepare(tx, caller, call))
            if opening is not None and self._interrupter is not None:
                opening = await self._capture.open(opening)  # what a pause cuts off is stored with the episode
            exchange = self._exchange(call, prompt, opening, asked_at)
        except BaseException:
            self._num_in_flight -= 1
            raise
        if opening is not None and not opening.is_known:
            self._under_way[opening.new.id] = caller.tenant_id
        exchange.start().add_done_callback(partial(self._ended, opening))
        return exchange

    async def recall(self, tenant_id: str, call: ChatCall, completion_id: str) -> RecalledExchange:
        """The answer as it was given before. Raises NotFound when it is no longer stored."""
        stops = self._renderer.stop_token_ids
        return await self._store.read(lambda tx: recall(tx, tenant_id, call, completion_id, stops))

    async def count(self, caller: Caller, call: ChatCall) -> int:
        """How many tokens the prompt of the call has. Raises as ``begin`` does."""
        self._check_model(call)
        redacted = self._secrets.call(call)
        _, prompt = await self._store.read(lambda tx: self._prepare(tx, caller, redacted))
        return prompt.num_input_ids

    def _check_model(self, call: ChatCall) -> None:
        if call.model != self._settings.model_name:
            raise UnknownName(f"no model {call.model!r}; there is {self._settings.model_name!r}", param="model")

    def _prepare(self, tx: Transaction, caller: Caller, call: ChatCall) -> tuple[Opening | None, Prompt]:
        if call.previous is not None and caller.episode is None:
            caller = replace(caller, episode=_episode_of(tx, caller, call.previous))
        episode = self._found(tx, caller)
        if not call.is_recorded and episode is None:
            return None, self._prompts.build(call, [], _no_spans)
        links: list[CompletionLink] = [] if episode is None else tx.clients.links(episode.id)
        read_spans = _no_spans if episode is None else partial(tx.clients.spans_of, episode.id)
        prompt = self._prompts.build(call, links, read_spans)
        if episode is not None and prompt.parent is not None and self._engine.records_experts:
            path = TurnTree(links).path(prompt.parent)
            prompt = replace(prompt, num_routed=tx.clients.num_routed(episode.id, path))
        if not call.is_recorded:
            return None, prompt
        seen = None if episode is None else SeenEpisode(episode, links)
        return self._opening(tx, caller, call, seen, prompt), prompt

    def _found(self, tx: Transaction, caller: Caller) -> ClientEpisodeRecord | None:
        """The caller's episode, None for one that is to be opened."""
        if caller.episode is None:
            return None
        check_name(caller.episode, "X-Episode-Id")
        episode = tx.clients.find(caller.tenant_id, caller.episode)
        if episode is None:
            if _OUR_ID.fullmatch(caller.episode) and self._under_way.get(caller.episode) != caller.tenant_id:
                raise NotFound(f"no episode {caller.episode!r}", param="X-Episode-Id")
            return None
        if not episode.is_active:
            raise Conflict(f"episode {caller.episode} is over: it takes no more answers", param="X-Episode-Id")
        return episode

    def _opening(
        self, tx: Transaction, caller: Caller, call: ChatCall, seen: SeenEpisode | None, prompt: Prompt
    ) -> Opening:
        name, episode = caller.episode, None if seen is None else seen.episode
        if episode is not None:
            episode_id = episode.id
        elif name is not None and _OUR_ID.fullmatch(name):
            episode_id, name = name, None
        else:
            episode_id = new_id("ep", self._db.clock())
        new = EpisodeNew(
            tenant_id=caller.tenant_id,
            env=CLIENT_ENV,
            task_id=f"prompt-{prompt.prompt_hash[:16]}",
            split="train",
            sampling=self._sampling(call, self._defaults.max_new_tokens),
            template_hash=self._renderer.template_hash,
            tools_hash=tool_schema_hash(call.tools),
            key_id=caller.key_id,
            metadata=call.tags,
            id=episode_id,
        )
        parent_id = None if caller.parent is None else self._parent_id(tx, caller)
        if parent_id == episode_id:
            raise BadInput("an episode cannot have started itself", param="X-Parent-Episode-Id")
        return Opening(
            new=new,
            name=name if episode is None else episode.name,
            parent_id=parent_id,
            is_known=episode is not None,
            is_unnamed=caller.episode is None,
            seen=seen,
        )

    def _parent_id(self, tx: Transaction, caller: Caller) -> str:
        assert caller.parent is not None
        parent = tx.clients.find(caller.tenant_id, check_name(caller.parent, "X-Parent-Episode-Id"))
        if parent is not None:
            return parent.id
        if self._under_way.get(caller.parent) == caller.tenant_id:
            return caller.parent
        raise NotFound(f"no episode {caller.parent!r}", param="X-Parent-Episode-Id")

    def _exchange(self, call: ChatCall, prompt: Prompt, opening: Opening | None, asked_at: float) -> Exchange:
        if call.has_grammar and prompt.opens_thought:
            field = call.format_field
            raise BadInput(
                f"{field}: this model thinks before it answers, and a grammar would forbid that", param=field
            )
        input_ids = prompt.input_ids
        room = self._engine.max_sequence_tokens - len(input_ids)
        if room < 1:
            raise ContextTooLong(
                f"the messages are {len(input_ids)} tokens long, which leaves no room for an answer in a context of "
                f"{self._engine.max_sequence_tokens}",
                param="messages",
            )
        asked = call.sampling.max_tokens or self._settings.max_new_tokens
        sampling = self._sampling(call, min(asked, room))
        completion_id = f"{_ID_PREFIX[call.protocol]}{secrets.token_hex(12)}"
        captured = Captured(completion_id, call, prompt, sampling, asked_at, tracing.traceparent())
        ends_early = bool(call.sampling.stop) or call.tool_choice.max_calls is not None
        ask = EngineAsk(
            input_ids=input_ids,
            sampling=sampling,
            stop_token_ids=self._renderer.stop_token_ids,
            more=call.sampling.more,
            wants_logprobs=call.num_top_logprobs is not None,
            num_top_logprobs=call.num_top_logprobs or 0,
            is_streamed=call.is_streamed or ends_early,
            wait_s=self._settings.engine_wait_s,
            parse=self._parser(call),
            experts_from=prompt.num_routed,
        )
        exchange = Exchange(captured, opening, self._capture)
        for index in range(call.num_choices):
            engine = self._engine_for(opening, sampling)
            exchange.add(ChoiceSampler(engine, ask, self._reader(call, prompt), partial(exchange.emit, index)))
            if isinstance(engine, InterruptibleChoice):
                exchange.at_end(engine.close)
        return exchange

    def _parser(self, call: ChatCall) -> ParseCalls | None:
        """The engine's, for a family whose calls are not read here."""
        family = FAMILIES.get(self._settings.tool_call_family)
        if family is None or not call.reads_calls:
            return None
        return partial(self._engine.parse_calls, parser=family.parser, tools=tool_schemas(call.tools))

    def _engine_for(self, opening: Opening | None, sampling: Sampling) -> Engine:
        """The engine as one choice sees it."""
        if self._interrupter is None:
            return self._engine
        episode_id = None if opening is None else opening.new.id
        return InterruptibleChoice(self._engine, self._interrupter, episode_id, sampling.temperature)

    def _reader(self, call: ChatCall, prompt: Prompt) -> AnswerReader:
        return AnswerReader(
            self._renderer,
            stop=call.sampling.stop,
            reads_calls=call.reads_calls,
            family=self._settings.tool_call_family,
            max_calls=call.tool_choice.max_calls,
            forced_text=(THINK_OPEN if prompt.opens_thought else "") + prompt.forced_text,
        )

    def _sampling(self, call: ChatCall, max_new_tokens: int) -> Sampling:
        asked, defaults = call.sampling, self._defaults
        return Sampling(
            temperature=defaults.temperature if asked.temperature is None else asked.temperature,
            top_p=defaults.top_p if asked.top_p is None else asked.top_p,
            max_new_tokens=max_new_tokens,
        )

    def _ended(self, opening: Opening | None, work: asyncio.Task[CallAnswer]) -> None:
        self._num_in_flight -= 1
        if opening is not None:
            self._under_way.pop(opening.new.id, None)
        if not work.cancelled():
            work.exception()  # whoever waits for the answer hears of it
        self._watch.ended(work)


def _episode_of(tx: Transaction, caller: Caller, completion_id: str) -> str:
    found = tx.clients.find_turns(caller.tenant_id, completion_id)
    if found is None:
        raise NotFound(f"no answer {completion_id!r} to go on from", param="previous_response_id")
    return found[0]


def _no_spans(turns: object) -> dict[int, list[Span]]:
    return {}
