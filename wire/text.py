"""Text as people and their programs write it: UTF-8, with or without a byte order mark in front. Pure."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")


def strip_mark(data: bytes) -> bytes:
    """The bytes of a text without the byte order mark that some editors and programs put in front."""
    return data.removeprefix(BYTE_ORDER_MARK)


def decode_text(data: bytes) -> str:
    """Decode a text. ValueError, a few words that say what to do, if it is not UTF-8."""
    if data.startswith(_UTF_16_MARKS):
        raise ValueError("UTF-16 text: save it as UTF-8")
    try:
        return strip_mark(data).decode()
    except UnicodeDecodeError:
        raise ValueError("not UTF-8 text") from None
