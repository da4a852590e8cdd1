"""A model behind an OpenAI-compatible address: edgerun's own server, llama-server, Ollama, ..."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from edgerun.chat import ChatOptions
from edgerun.core import Chunk, FinishReason, SamplingParams
from edgerun.errors import (
    BackendUnavailableError,
    ClosedError,
    EdgerunError,
    ModelNotFoundError,
    RequestError,
    printable,
)
from edgerun.tui.jobs import Job
from edgerun.tui.openai_errors import error_of, message_of, unreachable
from edgerun.tui.openai_request import Wanted, body_of
from edgerun.tui.openai_stream import DONE, AnswerReader, Lines
from edgerun.tui.partner import About, Choice, Live, Partner, Progress

if TYPE_CHECKING:
    import httpx

__all__ = ["RemotePartner", "base_of"]

#: Seconds: to connect, for a short answer, and between two pieces of a long one.
_CONNECT, _SHORT, _LONG = 5.0, 15.0, 900.0
_CLOSING = 1.5
#: Times that a request is sent again with fewer fields.
_TRIES = 4

_SERVERS = {"llamacpp": "llama.cpp", "library": "Ollama", "vllm": "vLLM", "edgerun": "edgerun"}
#: Where servers say how long a context is. What a model was trained for does not count.
_CONTEXT = ("loaded_context_length", "max_model_len", "context_length", "context_window")


def base_of(url: str) -> str:
    """What API paths are appended to: ``http://host:1/v1`` of ``host:1``, ``http://host:1/v1/``
    or ``http://host:1/v1/chat/completions``.

    Raises:
        RequestError: it is no address.
    """
    given = url.strip()
    whole = given if "://" in given else f"http://{given}"
    try:
        parts = urlsplit(whole)
        bad = parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0
    except ValueError:
        bad = True
    if bad or any(c.isspace() for c in whole):
        raise RequestError(
            f"{printable(url)!r} is not an address: give one such as http://localhost:8080",
            param="url",
        )
    path = parts.path.rstrip("/").removesuffix("/chat/completions").removesuffix("/models")
    return f"{parts.scheme}://{parts.netloc}{path or '/v1'}"


class RemotePartner(Partner):
    """See :class:`~edgerun.tui.partner.Partner`. Loading is choosing one of the server's models.

    Args:
        url: with or without ``/v1``.
        api_key: sent as a bearer token.

    Raises:
        RequestError: ``url`` is no address.
    """

    def __init__(self, url: str, api_key: str | None = None) -> None:
        self._base = base_of(url)
        self._key = api_key or None
        self._client: httpx.AsyncClient | None = None
        self._wanted = Wanted()
        self._counts = True
        self._closed = False

    @property
    def url(self) -> str:
        """The address, for people."""
        parts = urlsplit(self._base)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"

    # -- models -------------------------------------------------------------------------------

    async def load(self, model: str | None, progress: Progress) -> About:
        progress("load", 0, None)
        models = await self._models()
        fields = _pick(model, models, self.url)
        name = str(fields["id"])
        n_ctx = _context(fields)
        if n_ctx is None:
            n_ctx = await self._llama_cpp_context()
        owner = str(fields.get("owned_by") or "")
        backend = _SERVERS.get(owner, printable(owner, 40))
        size = _whole(_meta(fields).get("size")) or _whole(fields.get("size"))
        self.about = About(name, backend, n_ctx, self.url, size)
        progress("load", 1, 1)
        return self.about

    async def check(self, model: str) -> None:
        _pick(model, await self._models(), self.url)

    async def choices(self) -> list[Choice]:
        out = []
        for fields in await self._models():
            name = str(fields["id"])
            size = _whole(_meta(fields).get("size")) or _whole(fields.get("size"))
            out.append(Choice(name, name, size, source="server", n_ctx=_context(fields)))
        return out

    async def pull(self, target: str, progress: Progress) -> None:
        raise RequestError(f"models of {self.url} are fetched where it runs, not from here")

    async def _models(self) -> list[Mapping[str, Any]]:
        """The server's list; empty if it has none.

        Raises:
            EdgerunError: it cannot be reached, or does not let us in.
        """
        response = await self._get(f"{self._base}/models")
        if response.status_code == 404 and not self._base.endswith("/v1"):
            response = await self._get(f"{self._base}/v1/models")
            if response.status_code == 200:
                self._base += "/v1"
        if response.status_code in (404, 405, 501):
            if message_of(response.content)[1]:  # it speaks JSON: just no list
                return []
            raise error_of(self.url, 404, b"")
        if response.status_code != 200:
            raise error_of(self.url, response.status_code, response.content)
        try:
            data = response.json()
        except (ValueError, RecursionError):
            raise error_of(self.url, 404, b"") from None
        found = data.get("data", data.get("models")) if isinstance(data, Mapping) else data
        items = found if isinstance(found, list) else []
        return [
            {**item, "id": name}
            for item in items
            if isinstance(item, Mapping) and (name := item.get("id") or item.get("name"))
        ]

    async def _llama_cpp_context(self) -> int | None:
        """Of llama-server, which says it elsewhere."""
        with contextlib.suppress(EdgerunError, ValueError, AttributeError, RecursionError):
            response = await self._get(f"{self._root()}/props")
            if response.status_code == 200:
                settings = response.json().get("default_generation_settings") or {}
                return _whole(settings.get("n_ctx"))
        return None

    # -- answers ------------------------------------------------------------------------------

    async def answer(
        self,
        messages: Sequence[Mapping[str, Any]],
        params: SamplingParams,
        options: ChatOptions,
    ) -> AsyncGenerator[Chunk, None]:
        import httpx

        if self.about is None or self._closed:
            raise ClosedError(f"no model of {self.url} is chosen: choose one first")
        body = body_of(self.about.model, messages, params, options)
        client = await self._open()
        try:
            reader = AnswerReader(self.url)
            async with contextlib.aclosing(self._events(client, body)) as events:
                async for data in events:
                    if data == DONE:
                        reader.ended = reader.ended or FinishReason.STOP
                        break
                    chunk = reader.read(data)
                    if chunk is not None:
                        yield chunk
            # The connection may end at any point, but only a last event ends the answer.
            if reader.ended is None:
                raise BackendUnavailableError(
                    f"{self.url} broke off in the middle of the answer: ask again"
                )
            yield reader.finish()
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, RuntimeError) as e:
            if self._closed:
                raise ClosedError("the chat is closing") from None
            if isinstance(e, RuntimeError) and not isinstance(e, httpx.StreamError):
                raise
            raise unreachable(self.url, e) from None

    async def _events(
        self, client: httpx.AsyncClient, body: dict[str, Any]
    ) -> AsyncGenerator[Any, None]:
        """The parsed events of one answer, asked for again with fewer fields if need be."""
        for left in reversed(range(_TRIES)):
            sent = self._wanted.trim(body)
            if "continue_final_message" in body and "continue_final_message" not in sent:
                raise RequestError(
                    f"{self.url} cannot go on with an answer: ask for another one instead",
                    code="cannot_continue",
                )
            request = client.stream(
                "POST", f"{self._base}/chat/completions", json=sent, headers=self._headers()
            )
            async with request as response:
                if response.status_code == 200:
                    async with contextlib.aclosing(_parsed(response)) as events:
                        async for event in events:
                            yield event
                    return
                said = await response.aread()
                error = error_of(
                    self.url,
                    response.status_code,
                    said,
                    model=str(body["model"]),
                    retry_after=response.headers.get("retry-after", ""),
                )
            text, fields = message_of(said)
            retry = response.status_code in (400, 422) and type(error) is RequestError and left
            if error.code != RequestError.code or not retry:
                raise error
            if not self._wanted.learn(sent, text, fields.get("param")):
                raise error

    async def count(self, text: str) -> int | None:
        return await self._tokens({"content": text})

    async def count_prompt(
        self, messages: Sequence[Mapping[str, Any]], params: SamplingParams | None = None
    ) -> int | None:
        if not messages or not self._counts:
            return None
        data = await self._post_quietly(
            "/apply-template", {"messages": [dict(m) for m in messages]}
        )
        prompt = data.get("prompt") if data else None
        if not isinstance(prompt, str):
            return None
        return await self._tokens({"content": prompt, "add_special": True, "parse_special": True})

    async def _tokens(self, body: dict[str, Any]) -> int | None:
        data = await self._post_quietly("/tokenize", body)
        tokens = data.get("tokens") if data else None
        return len(tokens) if isinstance(tokens, list) else None

    async def _post_quietly(self, path: str, body: dict[str, Any]) -> Mapping[str, Any] | None:
        """What llama.cpp's own routes answer; None, from then on, of a server without them."""
        import httpx

        if not self._counts or self.about is None or self._closed:
            return None
        client = await self._open()
        try:
            response = await client.post(
                self._root() + path,
                json={"model": self.about.model, **body},
                headers=self._headers(),
                timeout=_SHORT,
            )
            data = response.json() if response.status_code == 200 else None
        except (httpx.HTTPError, ValueError, RecursionError):
            return None
        if response.status_code in (404, 405) or not isinstance(data, Mapping):
            self._counts = False
            return None
        return data

    def live(self) -> Live:
        return Live(refused=tuple(sorted(self._wanted.refused)))

    async def close(self) -> None:
        self._closed = True
        client, self._client, self.about = self._client, None, None
        if client is not None:
            with contextlib.suppress(Exception):
                await asyncio.wait_for(client.aclose(), _CLOSING)

    # -- the connection -----------------------------------------------------------------------

    async def _open(self) -> httpx.AsyncClient:
        if self._client is None:
            client: httpx.AsyncClient = await Job(lambda _: _new_client(self._base)).result()
            if self._client is None and not self._closed:
                self._client = client
            else:
                await client.aclose()
        if self._client is None or self._closed:
            raise ClosedError("the chat is closing")
        return self._client

    async def _get(self, url: str) -> httpx.Response:
        client = await self._open()
        import httpx

        try:
            return await client.get(url, headers=self._headers(), timeout=_SHORT)
        except (httpx.HTTPError, httpx.InvalidURL) as e:
            raise unreachable(self.url, e) from None

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    def _root(self) -> str:
        return self._base.removesuffix("/v1")


def _new_client(base: str) -> httpx.AsyncClient:
    """On another thread: the library, and for https the certificates, take a while."""
    import ipaddress

    import httpx

    parts = urlsplit(base)
    host = parts.hostname or ""
    local = host == "localhost" or host.endswith((".local", ".localhost"))
    with contextlib.suppress(ValueError):
        local = local or ipaddress.ip_address(host).is_private
    timeout = httpx.Timeout(_CONNECT, read=_LONG, write=60.0)
    # A proxy would not find what runs on this machine or beside it.
    return httpx.AsyncClient(timeout=timeout, trust_env=not local, verify=parts.scheme == "https")


async def _parsed(response: httpx.Response) -> AsyncGenerator[Any, None]:
    """The events of a stream; of a server that does not stream, its whole answer as one."""
    if "json" in response.headers.get("content-type", ""):
        yield _json(await response.aread())
        return
    lines = Lines()
    async for block in response.aiter_bytes():
        for data in lines.feed(block):
            if data.strip() == DONE:
                yield DONE
                return
            yield _json(data)
    for data in lines.end():
        if data.strip() and data.strip() != DONE:
            yield _json(data)


def _json(data: str | bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        text = data if isinstance(data, str) else data.decode("utf-8", "replace")
        return {"error": f"it sent {printable(text, 80)!r}, which is not JSON"}


def _pick(wanted: str | None, models: Sequence[Mapping[str, Any]], url: str) -> Mapping[str, Any]:
    if not wanted:
        if not models:
            raise ModelNotFoundError(f"{url} has no model: load one there, or name one with -m")
        return next((m for m in models if m.get("loaded") or m.get("state") == "loaded"), models[0])
    names = {str(m["id"]): m for m in models}
    for name in (wanted, f"{wanted}:latest"):
        if name in names or not names:
            return names.get(name, {"id": wanted})
    alike = [n for n in names if n.casefold() == wanted.casefold()]
    if len(alike) == 1:
        return names[alike[0]]
    close = difflib.get_close_matches(wanted, names, n=3, cutoff=0.4) or list(names)[:5]
    raise ModelNotFoundError(
        f"{url} has no model {printable(wanted, 80)!r}; it has "
        + ", ".join(printable(n, 80) for n in close)
        + (" and others" if len(close) < len(names) else "")
    )


def _context(fields: Mapping[str, Any]) -> int | None:
    found = (_whole(fields.get(k)) for k in _CONTEXT)
    return next((n for n in found if n), None) or _whole(_meta(fields).get("n_ctx"))


def _meta(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    meta = fields.get("meta")
    return meta if isinstance(meta, Mapping) else {}


def _whole(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None
