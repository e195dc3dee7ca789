"""The real SGLang holds an answer to a schema, and says the log-probs of what the grammar left to choose from."""

from __future__ import annotations

from collections.abc import AsyncIterator

import httpx
import numpy as np
import numpy.typing as npt
import orjson
import pytest

from online_agent.errors import EngineRejected
from online_agent.gateway.calls import GRAMMAR
from online_agent.rendering import ChatRenderer
from online_agent.serving.client import EngineClient, new_rid
from online_agent.types import Generation, Sampling
from tests.adapter_engine_fixtures import AdapterEngine
from tests.fakes.tiny_model import VOCAB_SIZE

pytestmark = pytest.mark.engine

PROMPT = np.arange(20, 60, dtype=np.int32)
SCHEMA = {
    "type": "object",
    "properties": {"kind": {"enum": ["bug", "feature"]}, "is_urgent": {"type": "boolean"}},
    "required": ["kind", "is_urgent"],
    "additionalProperties": False,
}
UNKNOWN_TO_THE_GRAMMAR = {"type": "integer", "multipleOf": 3}


@pytest.fixture
async def client(adapter_engine: AdapterEngine) -> AsyncIterator[EngineClient]:
    """Of the base: it names no adapter."""
    context_length = adapter_engine.settings.context_length
    async with EngineClient(adapter_engine.process.url, vocab_size=VOCAB_SIZE, context_length=context_length) as opened:
        yield opened


@pytest.fixture
def renderer(adapter_engine: AdapterEngine) -> ChatRenderer:
    return ChatRenderer.load(adapter_engine.policies.base.serving_dir)


def under(schema: object) -> dict[str, str]:
    return {GRAMMAR: orjson.dumps(schema).decode()}


async def held(client: EngineClient, renderer: ChatRenderer, *, is_streamed: bool = False) -> Generation:
    ask = (PROMPT, Sampling(1.0, 1.0, 100), renderer.stop_token_ids, new_rid())
    if not is_streamed:
        return await client.generate(*ask, more=under(SCHEMA))
    parts = [part async for part in client.generate_stream(*ask, more=under(SCHEMA))]
    assert parts[-1].generation is not None
    return parts[-1].generation


async def unconstrained(client: EngineClient, generation: Generation) -> npt.NDArray[np.float64]:
    """The model's own log-prob of each sampled id."""
    ids = [*PROMPT.tolist(), *generation.token_ids.tolist()]
    body = {
        "input_ids": ids,
        "sampling_params": {"temperature": 1.0, "max_new_tokens": 1},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        answer = (await http.post(f"{client.base_url}/generate", json=body)).json()
    triples = answer["meta_info"]["input_token_logprobs"][len(PROMPT) :]
    return np.asarray([triple[0] for triple in triples])


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_model_of_noise_answers_in_the_schema(
    client: EngineClient, renderer: ChatRenderer, is_streamed: bool
) -> None:
    generation = await held(client, renderer, is_streamed=is_streamed)
    *said, stop = generation.token_ids.tolist()
    answer = orjson.loads(renderer.decode(said))
    assert stop in renderer.stop_token_ids
    assert set(answer) == {"kind", "is_urgent"}
    assert answer["kind"] in ("bug", "feature")
    assert isinstance(answer["is_urgent"], bool)
    assert generation.misalignment is None


async def test_the_log_probs_are_those_of_the_ids_that_the_grammar_allows(
    client: EngineClient, renderer: ChatRenderer
) -> None:
    """A learner that knows no grammar would take each for its own: its ratio is the mass of the allowed ids, not 1."""
    generation = await held(client, renderer)
    own = await unconstrained(client, generation)
    assert (generation.logprobs >= own - 1e-3).all()
    assert generation.logprobs.max() == pytest.approx(0, abs=1e-4), "where one id is left, it is certain"
    assert (generation.logprobs - own).max() > 1


async def test_without_a_schema_the_same_server_says_the_models_own_log_probs(client: EngineClient) -> None:
    generation = await client.generate(PROMPT, Sampling(1.0, 1.0, 20), [], new_rid())
    np.testing.assert_allclose(generation.logprobs, await unconstrained(client, generation), atol=2e-3)


async def test_a_schema_that_the_grammar_cannot_hold_to_is_refused(client: EngineClient) -> None:
    for _ in range(2):  # the second time from its cache
        with pytest.raises(EngineRejected, match="multipleOf"):
            await client.generate(PROMPT, Sampling(), [], new_rid(), more=under(UNKNOWN_TO_THE_GRAMMAR))
    stream = client.generate_stream(PROMPT, Sampling(), [], new_rid(), more=under(UNKNOWN_TO_THE_GRAMMAR))
    with pytest.raises(EngineRejected, match="multipleOf"):
        await anext(stream)
