"""``GET /health``: not whether the process is there, but whether tokens flow; ``GET /metrics``."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from fastapi import APIRouter, Request, Response
from fastapi.responses import PlainTextResponse

from edgerun.core import SamplingParams
from edgerun.llm import LLM
from edgerun.server.errors import ERRORS, refusal
from edgerun.server.metrics import CONTENT_TYPE
from edgerun.server.sse import JSON

__all__ = ["Health", "router"]

router = APIRouter(tags=["Operation"])

#: Seconds an engine with work may go without a step. The longest step is a large model's chunk of
#: a prompt on a slow machine.
STUCK_AFTER = 30.0

#: Seconds a finding holds.
FRESH = 5.0


@dataclass
class _Seen:
    """How many steps there were, since when, and whether more were to come."""

    steps: int
    since: float
    busy: bool


class Health:
    """Watches loaded models: a busy one must make steps, an idle one must answer with a token."""

    def __init__(self, stuck_after: float = STUCK_AFTER, fresh: float = FRESH) -> None:
        self._stuck_after, self._fresh = stuck_after, fresh
        self._seen: dict[LLM, _Seen] = {}
        self._good: dict[LLM, float] = {}
        self._probes: dict[LLM, asyncio.Task[str | None]] = {}

    async def trouble(self, loaded: dict[str, LLM]) -> str | None:
        """What is wrong with one of ``loaded``; None if nothing is. Takes no step from a busy one,
        and one token from each idle one in five seconds at most."""
        for gone in set(self._seen) - set(loaded.values()):
            del self._seen[gone]
            self._good.pop(gone, None)
        found = await asyncio.gather(*(self._look(n, llm) for n, llm in loaded.items()))
        return next((f for f in found if f is not None), None)

    async def _look(self, name: str, llm: LLM) -> str | None:
        now, metrics = time.monotonic(), llm.metrics()
        seen = self._seen.get(llm)
        busy = metrics.running + metrics.waiting > 0
        if seen is None or seen.steps != metrics.steps or not (busy and seen.busy):
            self._seen[llm] = _Seen(metrics.steps, now, busy)
        elif now - seen.since > self._stuck_after:
            return f"{name} has made no step for {now - seen.since:.0f} seconds"
        if busy or now - self._good.get(llm, -1e9) < self._fresh:
            return None
        if llm not in self._probes:  # one at a time, whoever asks
            self._probes[llm] = asyncio.ensure_future(self._probe(name, llm))
        return await asyncio.shield(self._probes[llm])

    async def _probe(self, name: str, llm: LLM) -> str | None:
        try:
            await asyncio.wait_for(
                llm.agenerate("a", SamplingParams(max_tokens=1, temperature=0)), self._stuck_after
            )
        except asyncio.TimeoutError:
            return f"{name} gave no token in {self._stuck_after:g} seconds"
        except Exception as e:
            return f"{name} gives no token: {e}"
        finally:
            del self._probes[llm]
        self._good[llm] = time.monotonic()
        return None


_OK = {
    "description": "Tokens flow.",
    "content": {
        "application/json": {
            "schema": {
                "type": "object",
                "required": ["status"],
                "properties": {"status": {"const": "ok"}},
            }
        }
    },
}
_DOWN = {**ERRORS[503], "description": "A model is loading, or gives no tokens."}


@router.get("/v1/health", include_in_schema=False)
@router.get("/health", responses={200: _OK, 403: ERRORS[403], 503: _DOWN}, response_class=JSON)
async def health(request: Request) -> JSON:
    """200 if every loaded model produces tokens, 503 if one does not or the first still loads."""
    state = request.app.state
    if not state.ready:
        return JSON({"error": refusal(503, "Loading model", "loading")}, 503)
    trouble = await state.health.trouble(state.registry.loaded())
    if trouble is not None:
        return JSON({"error": refusal(503, trouble, "stuck")}, 503)
    return JSON({"status": "ok"})


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Counters and histograms, in Prometheus' text format."""
    return Response(request.app.state.metrics.text(), media_type=CONTENT_TYPE)
