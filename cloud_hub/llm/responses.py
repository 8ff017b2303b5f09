"""Requests of OpenAI's Responses interface, as the chat completions that they are. Pure.

Rule: what a chat completion cannot do, and whatever rests on something kept between two requests, is refused by the
name of its field: a hub keeps no responses.
Source: OpenAI API reference, Responses (create; function tools).
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from cloud_hub.llm.errors import LlmError
from wire.http.json_scan import JsonRefusedError, is_utf8, scan_json

# Fields that mean the same in a chat, by their names there.
_ALIKE = {
    "model": "model",
    "stream": "stream",
    "temperature": "temperature",
    "top_p": "top_p",
    "user": "user",
    "metadata": "metadata",
    "max_output_tokens": "max_completion_tokens",
    "seed": "seed",
}
# What may stand there with a value that asks for nothing.
_EMPTY: dict[str, tuple[object, ...]] = {
    "store": (False,),
    "background": (False,),
    "include": ([],),
    "truncation": ("disabled",),
    "service_tier": ("auto", "default"),
    "stream_options": ({}, {"include_obfuscation": False}),
}
_ROLES = {"user": "user", "assistant": "assistant", "system": "system", "developer": "system"}
_TOOL_FIELDS = frozenset({"tools", "tool_choice", "parallel_tool_calls"})


class ResponseRequest(msgspec.Struct, frozen=True):
    """A request as read. `chat`: the chat completion that it is; `id`: of the response; tools as they were given."""

    id: str
    model: str
    stream: bool
    chat: bytes
    instructions: str | None = None
    tools: list[dict[str, Any]] = []
    tool_choice: str | dict[str, Any] = "auto"
    parallel_tool_calls: bool = True


class _Item(msgspec.Struct, frozen=True):
    type: str = "message"
    role: str = ""
    content: msgspec.Raw = msgspec.Raw()
    call_id: str = ""
    name: str = ""
    arguments: str = ""
    output: msgspec.Raw = msgspec.Raw()


def parse_response_request(body: bytes, response_id: str) -> ResponseRequest:
    """Parse the body of a request. LlmError(400) names the field that is wrong, or that cannot be had here."""
    fields = _decode_fields(body)
    for name, raw in fields.items():
        if name not in {"input", "instructions", "text", *_TOOL_FIELDS, *_ALIKE}:
            _require_empty(name, raw)
    chat: dict[str, Any] = {_ALIKE[name]: raw for name, raw in fields.items() if name in _ALIKE and raw != b"null"}
    instructions = _decode(fields.get("instructions"), str | None, "instructions")
    messages = _read_input(fields.get("input"))
    chat["messages"] = [*([{"role": "system", "content": instructions}] if instructions else []), *messages]
    if (response_format := _read_format(fields.get("text"))) is not None:
        chat["response_format"] = response_format
    stream = bool(_decode(fields.get("stream"), bool | None, "stream"))
    if stream:
        chat["stream_options"] = {"include_usage": True}
    model = _decode(fields.get("model"), str, "model")
    tools: list[dict[str, Any]] = _decode(fields.get("tools"), list[dict[str, Any]] | None, "tools") or []
    choice = _decode(fields.get("tool_choice"), str | dict[str, Any] | None, "tool_choice") or "auto"
    parallel = _decode(fields.get("parallel_tool_calls"), bool | None, "parallel_tool_calls")
    if tools:
        chat |= {"tools": [_read_tool(tool) for tool in tools], "tool_choice": _read_choice(choice, tools)}
        chat |= {} if parallel is None else {"parallel_tool_calls": parallel}
    elif choice not in ("auto", "none"):
        raise LlmError(400, "'tool_choice' asks for a tool, and 'tools' has none", param="tool_choice")
    encoded = msgspec.json.encode(chat)
    return ResponseRequest(response_id, model, stream, encoded, instructions, tools, choice, parallel is not False)


def _decode_fields(body: bytes) -> dict[str, msgspec.Raw]:
    try:
        if is_utf8(body):
            for _ in scan_json(body):
                pass
            return msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    except JsonRefusedError as error:
        raise LlmError(400, str(error), code="invalid_json") from None
    except (msgspec.DecodeError, RecursionError):
        pass
    raise LlmError(400, "the body is no JSON object", code="invalid_json")


def _require_empty(name: str, raw: msgspec.Raw) -> None:
    """LlmError(400) unless a field asks for nothing."""
    value = msgspec.json.decode(raw) if len(raw) <= 1024 else raw
    if value is not None and value not in _EMPTY.get(name, ()):
        line = f"'{name}' cannot be had here: ask by chat completions, and keep what you need between requests"
        raise LlmError(400, line, param=name[:64], code="unsupported_parameter")


def _decode(raw: msgspec.Raw | None, kind: Any, name: str) -> Any:
    try:
        return msgspec.json.decode(raw if raw is not None else b"null", type=kind)
    except (msgspec.DecodeError, RecursionError):
        raise LlmError(400, f"'{name}' is of a wrong type", param=name, code="invalid_value") from None


def _read_input(raw: msgspec.Raw | None) -> list[dict[str, Any]]:
    if raw is not None and bytes(raw).startswith(b'"'):
        return [{"role": "user", "content": msgspec.Raw(bytes(raw))}]
    items: list[_Item] = _decode(raw, list[_Item], "input")
    if not items:
        raise LlmError(400, "'input' is a text, or a list of at least one message", param="input", code="invalid_value")
    messages: list[dict[str, Any]] = []
    for item in items:
        _add_item(messages, item)
    return messages


def _add_item(messages: list[dict[str, Any]], item: _Item) -> None:
    """Add an item of the input to a chat: calls of functions belong to the assistant's message before them."""
    if item.type == "function_call" and item.call_id and item.name:
        call = {"id": item.call_id, "type": "function", "function": {"name": item.name, "arguments": item.arguments}}
        if not messages or messages[-1]["role"] != "assistant":
            messages.append({"role": "assistant", "content": None})
        messages[-1].setdefault("tool_calls", []).append(call)
    elif item.type == "function_call_output" and item.call_id:
        messages.append({"role": "tool", "tool_call_id": item.call_id, "content": _read_content(item.output)})
    elif item.type == "message" and item.role in _ROLES:
        messages.append({"role": _ROLES[item.role], "content": _read_content(item.content)})
    else:
        line = "'input' holds messages of user, assistant, system or developer, calls of functions and their outputs"
        raise LlmError(400, line, param="input", code="unsupported_parameter")


def _read_content(raw: msgspec.Raw) -> object:
    """Return the content of a message: a text, or parts where there are pictures."""
    if bytes(raw).startswith(b'"'):
        return raw
    parts = [_read_part(part) for part in _decode(raw, list[dict[str, Any]], "input")]
    if all(part["type"] == "text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _read_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a function tool as a chat has it. LlmError(400) for what is no function: the hub runs no tools."""
    kind, name = tool.get("type"), tool.get("name")
    if kind != "function":
        line = "'tools' holds functions, which the caller runs, and nothing else: the hub runs no tools"
        raise LlmError(400, line, param="tools", code="unsupported_parameter")
    if not isinstance(name, str) or not name:
        raise LlmError(400, "a function in 'tools' has a 'name'", param="tools", code="invalid_value")
    given = {each: tool[each] for each in ("description", "parameters", "strict") if tool.get(each) is not None}
    return {"type": "function", "function": {"name": name, **given}}


def _read_choice(choice: str | Mapping[str, Any], tools: list[dict[str, Any]]) -> object:
    """Return which tool shall be called, as a chat has it."""
    if choice in ("auto", "none", "required"):
        return choice
    if isinstance(choice, Mapping) and choice.get("type") == "function":
        name = choice.get("name")
        if any(tool.get("name") == name for tool in tools):
            return {"type": "function", "function": {"name": name}}
    line = "'tool_choice' is auto, none, required or one of the functions in 'tools'"
    raise LlmError(400, line, param="tool_choice", code="invalid_value")


def _read_part(part: Mapping[str, Any]) -> dict[str, Any]:
    kind, text, url, detail = (part.get(name) for name in ("type", "text", "image_url", "detail"))
    if kind in ("input_text", "output_text") and isinstance(text, str):
        return {"type": "text", "text": text}
    if kind == "input_image" and isinstance(url, str) and url and isinstance(detail, str | None):
        return {"type": "image_url", "image_url": {"url": url, **({"detail": detail} if detail else {})}}
    line = "'input' holds texts and pictures with an 'image_url', and nothing else"
    raise LlmError(400, line, param="input", code="unsupported_parameter")


def _read_format(raw: msgspec.Raw | None) -> dict[str, Any] | None:
    """Return the `response_format` of a chat, None for plain text."""
    text = _decode(raw, dict[str, Any] | None, "text") or {}
    found = text.get("format") or {"type": "text"}
    kind = found.get("type") if isinstance(found, dict) else None
    if kind == "json_schema":
        return {"type": kind, "json_schema": {name: value for name, value in found.items() if name != "type"}}
    if kind == "json_object":
        return {"type": kind}
    if kind != "text":
        raise LlmError(400, "'text' has a format of text, json_object or json_schema", param="text")
    return None
