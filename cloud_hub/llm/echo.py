"""An OpenAI-compatible server that says the prompt's words again, at a set pace, and breaks in set ways: for tests.

Run as a program it is an engine that the hub can start: `python -m cloud_hub.llm.echo --port 8101 --model echo`.
Rule: it counts what it computed as an engine does, so that bills can be compared with it.
"""

import argparse
import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from aiohttp import web

BLOCK_WORDS = 16
LATER_S = 0.02  # before what goes wrong after two events: these have been read by then


class EchoFault(StrEnum):
    """What the server does wrong, at requests of more than one token unless it says otherwise."""

    NONE = "none"
    NOT_READY = "not_ready"  # status 503, to the completion of one token too
    DIES_AT_ONCE = "dies_at_once"  # closes the connection without an answer
    DIES_LATER = "dies_later"  # closes it after two events
    HALF_EVENT = "half_event"  # after two events half of the third, then closes
    BROKEN_JSON = "broken_json"  # the third event, or a whole answer, is no JSON
    HUGE_LINE = "huge_line"  # the third event is 10 MB long
    ERROR_EVENT = "error_event"  # the third event is an error
    STALLS_AT_ONCE = "stalls_at_once"
    STALLS_LATER = "stalls_later"  # after two events
    NO_DONE = "no_done"  # ends in order, without `[DONE]`
    NO_BLANK_LINE = "no_blank_line"  # ends in order, without the blank line after `[DONE]`
    NO_END = "no_end"  # closes in order after two events, without a `finish_reason`
    ODD_NUMBERS = "odd_numbers"  # null choices, and counts that are null or written as 12.0
    REFUSES_LATER = "refuses_later"  # the first event, or a whole answer of status 200, is an error of code 400
    EMPTY = "empty"  # a whole answer of status 200 that is `{}`, or a stream of JSON
    HTML = "html"  # a page, whatever its type says
    NO_UTF8 = "no_utf8"  # the third event, or a whole answer, holds a byte that is no text
    NO_USAGE = "no_usage"
    ABSURD_USAGE = "absurd_usage"  # more tokens out of the cache than there are, and fewer than none generated
    WRONG_KEY = "wrong_key"  # status 401
    REFUSES = "refuses"  # status 400, with a reason
    FAILS = "fails"  # status 500
    BUSY = "busy"  # status 429
    UNKNOWN = "unknown"  # status 404, as vLLM answers where a model does not do what is asked


_STATUSES = {
    EchoFault.NOT_READY: 503,
    EchoFault.WRONG_KEY: 401,
    EchoFault.FAILS: 500,
    EchoFault.BUSY: 429,
    EchoFault.UNKNOWN: 404,
}


class EchoUpstream:
    """The server. `token_s`: time for each generated token; `first_s`: before the first one. `fault` may be changed.

    `word_faults`: what goes wrong with prompts that hold a word, whatever `fault` is. `counts_each`: tells the usage so
    far with each event to who asks for `continuous_usage_stats`, as vLLM does; else such a request is refused.

    A request with function tools whose last message is a user's is answered by a call of the first one, with the words
    as its arguments.

    `replies`: what is said instead of the prompt, by a word: the first of these words that stands in it counts.

    `requests` counts those beyond the hub's checks, `prompt_tokens` and `generated_tokens` what was computed for them,
    `cached_tokens` of the prompts what was computed before; `hung_up` those whose caller went before the end.
    """

    def __init__(self, model: str = "echo", *, key: str = "", token_s: float = 0.0, first_s: float = 0.0) -> None:
        self.model = model
        self.fault = EchoFault.NONE
        self.word_faults: dict[str, EchoFault] = {}
        self.counts_each = True
        self.token_s = token_s
        self.first_s = first_s
        self.requests = self.prompt_tokens = self.generated_tokens = self.cached_tokens = 0
        self.hung_up = self.in_flight = self.checks = 0
        self.context_tokens = 32_768
        self.waiting, self.kv_usage = 0, 0.0
        self.bodies: list[bytes] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""
        self._key = key
        self.replies: dict[str, str] = {}
        self._cache: set[tuple[str, ...]] = set()
        self._runner: web.AppRunner | None = None

    async def start(self, port: int = 0) -> str:
        """Listen on this machine; returns the URL."""
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.add_routes(
            [
                web.post("/v1/chat/completions", self._answer),
                web.post("/v1/completions", self._answer),
                web.post("/v1/embeddings", self._embed),
                web.get("/v1/models", self._list_models),
                web.get("/metrics", self._show_metrics),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", port).start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self.url

    async def stop(self) -> None:
        """Close the server and every connection."""
        if self._runner is not None:
            await self._runner.cleanup()

    # -- routes

    async def _list_models(self, _request: web.Request) -> web.Response:
        data = [{"id": self.model, "object": "model", "max_model_len": self.context_tokens}]
        return web.json_response({"object": "list", "data": data})

    async def _show_metrics(self, _request: web.Request) -> web.Response:
        lines = [
            f"vllm:num_requests_running {self.in_flight}",
            f"vllm:num_requests_waiting {self.waiting}",
            f"vllm:kv_cache_usage_perc {self.kv_usage}",
            f'vllm:cache_config_info{{block_size="{BLOCK_WORDS}"}} 1.0',
            f"vllm:request_success_total {self.requests}",
            f"vllm:prompt_tokens_total {self.prompt_tokens}",
            f"vllm:prompt_tokens_cached_total {self.cached_tokens}",
            f"vllm:generation_tokens_total {self.generated_tokens}",
        ]
        return web.Response(text="\n".join(lines) + "\n")

    async def _embed(self, request: web.Request) -> web.Response:
        asked = await self._read(request)
        texts = asked["input"] if isinstance(asked["input"], list) else [asked["input"]]
        data = [
            {"object": "embedding", "index": i, "embedding": [float(len(str(t))), 0.5]} for i, t in enumerate(texts)
        ]
        tokens = sum(len(str(text).split()) for text in texts)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        self.prompt_tokens += tokens
        return web.json_response({"object": "list", "data": data, "model": self.model, "usage": usage})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        asked = await self._read(request)
        chat = request.path.endswith("chat/completions")
        words = _read_words(asked["messages"] if chat else asked["prompt"])
        most = asked.get("max_tokens") or asked.get("max_completion_tokens") or 16
        if (asked.get("stream_options") or {}).get("continuous_usage_stats") and not self.counts_each:
            said = {"message": "unknown parameter: stream_options.continuous_usage_stats", "code": 400}
            return web.json_response({"error": said}, status=400)
        if most == 1 and len(words) == 1 and self.fault is not EchoFault.NOT_READY:
            self.checks += 1
            if asked.get("stream"):
                self.generated_tokens -= 1  # of a check, which counts nowhere
                return await self._stream(request, asked, EchoFault.NONE, (words, ["ok"], 0))
            return web.json_response(self._whole_answer(words, ["ok"], chat=chat))
        fault = self._find_fault(words)
        refused = await self._misbehave(request, fault)
        if refused is not None:
            return refused
        self.requests += 1
        self.in_flight += 1
        try:
            return await self._compute(request, asked, fault, (words, _say_words(words, most, self.replies)))
        except asyncio.CancelledError:
            self.hung_up += 1
            raise
        except ConnectionError:  # it went while it was sent an event
            self.hung_up += 1
            return web.Response()
        finally:
            self.in_flight -= 1

    async def _read(self, request: web.Request) -> dict[str, Any]:
        if self._key and request.headers.get("Authorization") != f"Bearer {self._key}":
            raise web.HTTPUnauthorized
        body = await request.read()
        self.bodies = [*self.bodies[-99:], body]
        self.headers = [*self.headers[-99:], dict(request.headers)]
        asked: dict[str, Any] = json.loads(body)
        if asked["model"] != self.model:
            raise web.HTTPNotFound
        return asked

    def _find_fault(self, words: list[str]) -> EchoFault:
        """Return what goes wrong with a prompt."""
        return next((self.word_faults[word] for word in words if word in self.word_faults), self.fault)

    async def _misbehave(self, request: web.Request, fault: EchoFault) -> web.Response | None:
        """Return the faulty answer where the fault is one of those before the first byte."""
        if fault in _STATUSES:
            headers = {"Retry-After": "47"} if fault is EchoFault.BUSY else None
            return web.json_response({"error": {"message": "no"}}, status=_STATUSES[fault], headers=headers)
        if fault is EchoFault.REFUSES:
            said = {"message": "the prompt is too long", "type": "BadRequestError", "param": None, "code": 400}
            return web.json_response({"error": said}, status=400)
        if fault is EchoFault.EMPTY:
            return web.json_response({})
        if fault is EchoFault.STALLS_AT_ONCE:
            await asyncio.sleep(3600)
        if fault is EchoFault.DIES_AT_ONCE and request.transport is not None:
            request.transport.close()
            raise ConnectionError
        return None

    async def _compute(
        self, request: web.Request, asked: dict[str, Any], fault: EchoFault, texts: tuple[list[str], list[str]]
    ) -> web.StreamResponse:
        words, said = texts
        cached = self._count_prompt(words)
        if name := _find_tool(asked):
            return await self._call_tool(request, name, (words, cached), stream=bool(asked.get("stream")))
        await asyncio.sleep(self.first_s)
        if asked.get("stream"):
            return await self._stream(request, asked, fault, (words, said, cached))
        for _ in said:
            await asyncio.sleep(self.token_s)
            self.generated_tokens += 1
        if fault in _FAULTY_BODIES:
            return web.Response(body=_FAULTY_BODIES[fault], content_type="application/json")
        whole = self._whole_answer(words, said, chat=request.path.endswith("chat/completions"), cached=cached)
        if fault is EchoFault.NO_USAGE:
            del whole["usage"]
        return web.json_response(whole)

    async def _call_tool(
        self, request: web.Request, name: str, prompt: tuple[list[str], int], *, stream: bool
    ) -> web.StreamResponse:
        """Answer with a call of a function, its arguments in two parts."""
        words, cached = prompt
        arguments = json.dumps({"words": words})
        call: dict[str, Any] = {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}
        self.generated_tokens += len(words)
        usage = _count_usage(words, words, cached)
        if not stream:
            message = {"role": "assistant", "content": None, "tool_calls": [call]}
            choices: list[Any] = [{"index": 0, "message": message, "finish_reason": "tool_calls"}]
            return web.json_response({**_HEAD, "object": "chat.completion", "choices": choices, "usage": usage})
        parts: list[dict[str, Any]] = [{"index": 0, **call, "function": {"name": name, "arguments": ""}}]
        parts += [{"index": 0, "function": {"arguments": part}} for part in (arguments[:5], arguments[5:])]
        chunks: list[dict[str, Any]] = [{"delta": {"tool_calls": [part]}, "finish_reason": None} for part in parts]
        chunks.append({"delta": {}, "finish_reason": "tool_calls"})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for chunk in chunks:
            await response.write(_encode_event({**_HEAD, "choices": [{"index": 0, **chunk}]}))
        await response.write(_encode_event({**_HEAD, "choices": [], "usage": usage}) + b"data: [DONE]\n\n")
        return response

    async def _stream(
        self, request: web.Request, asked: dict[str, Any], fault: EchoFault, texts: tuple[list[str], list[str], int]
    ) -> web.StreamResponse:
        words, said, cached = texts
        options = asked.get("stream_options") or {}
        wants = fault is not EchoFault.NO_USAGE and options.get("include_usage")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for event in _FIRST_EVENTS.get(fault, ()):
            await response.write(event)
        if fault in (EchoFault.HTML, EchoFault.REFUSES_LATER):
            return response
        number = 0
        async for chunk in self._speak(request, fault, said):
            number += 1
            if isinstance(chunk, dict) and wants and options.get("continuous_usage_stats"):
                chunk["usage"] = self._tell_usage(words, said[:number], cached, fault)
            await response.write(chunk if isinstance(chunk, bytes) else _encode_event(chunk))
        if fault in (EchoFault.DIES_LATER, EchoFault.HALF_EVENT) and request.transport is not None:
            request.transport.close()
            return response
        if wants:
            usage = self._tell_usage(words, said[:number], cached, fault)  # of what it computed
            await response.write(_encode_event({**_HEAD, "choices": [], "usage": usage}))
        if fault not in (EchoFault.NO_DONE, EchoFault.NO_END):
            await response.write(b"data: [DONE]" if fault is EchoFault.NO_BLANK_LINE else b"data: [DONE]\n\n")
        return response

    async def _speak(
        self, request: web.Request, fault: EchoFault, said: list[str]
    ) -> AsyncIterator[bytes | dict[str, Any]]:
        """Yield the events of a stream, up to the fault."""
        chat = request.path.endswith("chat/completions")
        loop = asyncio.get_running_loop()
        due = loop.time()
        for number, word in enumerate(said):
            if number == 2 and fault is not EchoFault.NONE:
                await asyncio.sleep(LATER_S)
            if number == 2 and (event := _FAULTY_EVENTS.get(fault)) is not None:
                yield event
                return
            if number == 2 and fault in (EchoFault.DIES_LATER, EchoFault.NO_END):
                return
            if number == 2 and fault is EchoFault.STALLS_LATER:
                await asyncio.sleep(3600)
            due += self.token_s
            await asyncio.sleep(max(0.0, due - loop.time()))
            self.generated_tokens += 1
            end = "stop" if number == len(said) - 1 else None
            spoken = word if end else word + " "
            text = {"delta": {"content": spoken}} if chat else {"text": spoken}
            yield {**_HEAD, "choices": [{"index": 0, **text, "finish_reason": end}]}

    def _tell_usage(self, words: list[str], said: list[str], cached: int, fault: EchoFault) -> dict[str, Any]:
        told = _count_usage(words, said, cached)
        if fault is EchoFault.ABSURD_USAGE:
            return {**told, "completion_tokens": -5, "prompt_tokens_details": {"cached_tokens": 10**30}}
        if fault is EchoFault.ODD_NUMBERS:
            return {**told, "prompt_tokens": float(len(words)), "prompt_tokens_details": {"cached_tokens": None}}
        return told

    def _count_prompt(self, words: list[str]) -> int:
        """Count the prompt's words, and of them those of whole blocks that were computed before: returns these."""
        self.prompt_tokens += len(words)
        before = self.cached_tokens
        for end in range(BLOCK_WORDS, len(words) + 1, BLOCK_WORDS):
            block = tuple(words[:end])
            self.cached_tokens += BLOCK_WORDS if block in self._cache else 0
            self._cache.add(block)
        return self.cached_tokens - before

    def _whole_answer(self, words: list[str], said: list[str], *, chat: bool, cached: int = 0) -> dict[str, Any]:
        text = " ".join(said)
        choice = {"message": {"role": "assistant", "content": text}} if chat else {"text": text}
        kind = "chat.completion" if chat else "text_completion"
        choices = [{"index": 0, **choice, "finish_reason": "stop"}]
        return {
            **_HEAD,
            "object": kind,
            "model": self.model,
            "choices": choices,
            "usage": self._tell_usage(words, said, cached, self._find_fault(words)),
        }


_HEAD = {"id": "echo-1", "object": "chat.completion.chunk", "created": int(time.time()), "model": "echo"}


def _encode_event(value: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


_NO_UTF8 = b'data: {"choices": [{"index": 0, "delta": {"content": "\xff"}}]}\n\n'
_HTML = b"<!DOCTYPE html>\n<html><body>\nBad gateway\n</body></html>\n\n"
_REFUSAL = b'{"error": {"message": "the role is not known", "type": "BadRequestError", "param": "role", "code": 400}}'
_FAULTY_EVENTS = {
    EchoFault.HALF_EVENT: b'data: {"id": "echo-1", "choi',
    EchoFault.BROKEN_JSON: b"data: {choices\n\n",
    EchoFault.HUGE_LINE: b"data: " + b"x" * 10_000_000 + b"\n\n",
    EchoFault.ERROR_EVENT: b'data: {"error": {"message": "out of memory", "code": 500}}\n\n',
    EchoFault.NO_UTF8: _NO_UTF8,
}
_FIRST_EVENTS = {
    EchoFault.HTML: (_HTML,),
    EchoFault.REFUSES_LATER: (b"data: " + _REFUSAL + b"\n\n",),
    EchoFault.ODD_NUMBERS: (
        b": ping\n\n",
        b'data: {"choices": null, "usage": null, "error": null}\n\n',
        b'data: {"choices": [], "usage": {"prompt_tokens": null}}\n\n',
    ),
}
_FAULTY_BODIES = {
    EchoFault.BROKEN_JSON: b'{"choices": [',
    EchoFault.HTML: _HTML,
    EchoFault.NO_UTF8: b'{"choices": [{"message": {"content": "\xff"}}]}',
    EchoFault.REFUSES_LATER: _REFUSAL,
    EchoFault.ERROR_EVENT: b'{"error": {"message": "out of memory", "code": 500}}',
}


def _read_words(prompt: Any) -> list[str]:
    """Return the words of a prompt or of messages."""
    if isinstance(prompt, str):
        return prompt.split()
    texts = [each.get("content") if isinstance(each, dict) else each for each in prompt]
    return [word for text in texts for word in str(text).split()]


def _find_tool(asked: Mapping[str, Any]) -> str:
    """Return the name of the function that a request asks to be called, "" if it does not."""
    tools = asked.get("tools") or [{}]
    called = asked.get("tool_choice") != "none" and (asked.get("messages") or [{}])[-1].get("role") == "user"
    return str(tools[0].get("function", {}).get("name", "")) if called else ""


def _say_words(words: list[str], most: int, replies: Mapping[str, str]) -> list[str]:
    known = next((replies[word.lower()] for word in words if word.lower() in replies), "")
    if known:
        return known.split()[:most]
    return [words[i % len(words)] for i in range(most)] if words else ["nothing"]


def _count_usage(words: list[str], said: list[str], cached: int) -> dict[str, Any]:
    counts = {"prompt_tokens": len(words), "completion_tokens": len(said), "total_tokens": len(words) + len(said)}
    return {**counts, "prompt_tokens_details": {"cached_tokens": cached}}


async def _serve(options: argparse.Namespace) -> None:
    await asyncio.sleep(options.start_s)
    server = EchoUpstream(options.model, token_s=options.token_s, first_s=options.first_s)
    server.counts_each = not options.no_each_usage
    server.word_faults = {
        word: EchoFault(fault) for word, _, fault in (each.partition("=") for each in options.word_fault)
    }
    server.replies = json.loads(options.replies.read_text(encoding="utf-8-sig")) if options.replies else {}
    print(await server.start(options.port), flush=True)
    await asyncio.Event().wait()


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(prog="python -m cloud_hub.llm.echo", usage="%(prog)s [options]")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", default="echo")
    parser.add_argument("--token-s", type=float, default=0.0, help="seconds for each generated token")
    parser.add_argument("--first-s", type=float, default=0.0, help="seconds before the first one")
    parser.add_argument("--no-each-usage", action="store_true", help="tell the usage at the end of a stream alone")
    parser.add_argument("--replies", type=Path, help="JSON file: what to say, by a word of the prompt")
    says = "what goes wrong with prompts that hold a word, as WORD=FAULT; may be given several times"
    parser.add_argument("--word-fault", action="append", default=[], help=says)
    parser.add_argument("--start-s", type=float, default=0.0, help="seconds before it listens")
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
