"""The hub's half of a text model: which language model is asked, and the messages that a device's text is put into.

It is the one file of a hub part of kind `text`, JSON, at most 64 KiB; a device never has it.
Rule: closed and checked as a manifest is: an unknown key or an impossible value is a `BundleError` of one line.
Rule: a device's text is put into one place, verbatim, and is never read as a template: it cannot add a message, change
a role or fill another place.
"""

import re
from enum import StrEnum

import msgspec

from models.bundle.hub_part import HubPart
from models.bundle.manifest import BundleError

TEXT_FILE = "text.json"
PLACEHOLDER = "{text}"
MAX_TEXT_FILE_BYTES = 64 * 1024
MAX_ANSWER_TOKENS = 32_768
MAX_ANSWER_BYTES = 32 * 1024  # sealed and padded it must fit a frame of 128 KiB, whatever its size class
MAX_MESSAGES = 64
_LLM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/-]{0,127}")  # as `[[llm]] name` in hub.toml


class MessageRole(StrEnum):
    """Role of a message of the prompt."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"


class PromptMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One message of the prompt."""

    role: MessageRole
    content: str


class TextTemplate(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the hub asks for a device's text.

    `llm`: name of a language model of the hub. `messages`: of the prompt; one of them, of the user, holds `{text}`
    once. `max_tokens`: of the answer; `max_bytes`: of its text, which is cut there between two characters.
    `temperature`: of the sampling, 0 = always the likeliest token.
    """

    llm: str
    messages: tuple[PromptMessage, ...]
    max_tokens: int = 256
    max_bytes: int = 4096
    temperature: float = 0.0

    def fill(self, text: str) -> list[PromptMessage]:
        """Return the messages with a device's text in its place."""
        return [
            msgspec.structs.replace(each, content=text.join(each.content.split(PLACEHOLDER)))
            if PLACEHOLDER in each.content
            else each
            for each in self.messages
        ]


_decoder = msgspec.json.Decoder(TextTemplate)


def encode_text_template(template: TextTemplate) -> bytes:
    """Encode as readable JSON, the same bytes for the same values. BundleError for impossible values."""
    check_text_template(template)
    data = msgspec.json.format(msgspec.json.encode(template, order="deterministic"), indent=1) + b"\n"
    if len(data) > MAX_TEXT_FILE_BYTES:
        raise BundleError(f"{TEXT_FILE}: bigger than the {MAX_TEXT_FILE_BYTES} bytes allowed")
    return data


def decode_text_template(data: bytes) -> TextTemplate:
    """Decode and check `text.json`. BundleError, one line, for anything else."""
    if len(data) > MAX_TEXT_FILE_BYTES:
        raise BundleError(f"{TEXT_FILE}: bigger than the {MAX_TEXT_FILE_BYTES} bytes allowed")
    try:
        template = _decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BundleError(f"{TEXT_FILE}: {error}") from None
    check_text_template(template)
    return template


def read_text_template(part: HubPart) -> TextTemplate:
    """Read the template of a hub part of kind `text`. BundleError that names the model if it is malformed."""
    try:
        return decode_text_template(part.read_file(part.manifest.graph))
    except BundleError as error:
        raise BundleError(f"{part.manifest.model}: {error}") from None


def check_text_template(template: TextTemplate) -> None:
    """Check every value. BundleError, naming the key, for the first value that is impossible."""
    places = [each for each in template.messages for _ in range(each.content.count(PLACEHOLDER))]
    rules = (
        ("llm", bool(_LLM_NAME.fullmatch(template.llm))),
        ("messages: 1 to 64 of them", 1 <= len(template.messages) <= MAX_MESSAGES),
        (f"messages: {PLACEHOLDER} stands in them once", len(places) == 1),
        (f"messages: {PLACEHOLDER} stands in a message of the user", all(e.role is MessageRole.USER for e in places)),
        ("messages: the last is the user's", template.messages[-1:] and template.messages[-1].role is MessageRole.USER),
        ("max_tokens", 1 <= template.max_tokens <= MAX_ANSWER_TOKENS),
        ("max_bytes", 1 <= template.max_bytes <= MAX_ANSWER_BYTES),
        ("temperature", 0 <= template.temperature <= 2),
    )
    for key, fits in rules:
        if not fits:
            raise BundleError(f"{TEXT_FILE}: not so: {key}")
