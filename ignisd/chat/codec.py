"""JSON in and JSON out: decoding into structs with the path of a fault, encoding to bytes."""

import re
from typing import TypeVar

import msgspec
import orjson

from ignisd.errors import RequestError

T = TypeVar("T")

_AT = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>\$[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `(?P<name>[^`]+)`")


def decode(body: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Decode a JSON body.

    Raises:
        RequestError: the body is no JSON, or a field has the wrong type. `param` is the path of
            the field; for a missing field its name.
    """
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _field_error(str(error)) from error
    except msgspec.DecodeError as error:
        raise RequestError(f"The body is not valid JSON: {error}.") from error
    except RecursionError as error:
        raise RequestError("The body nests objects or arrays too deeply.") from error


def encode(value: object) -> bytes:
    """Encode an answer; the values are our own, so a failure here is a bug."""
    return orjson.dumps(value)


def _field_error(text: str) -> RequestError:
    found = _AT.match(text)
    assert found is not None, text
    what, path = found["what"], found["path"] or ""
    missing = _MISSING.search(what)
    param = missing["name"] if missing else path.removeprefix("$").removeprefix(".") or None
    where = f" ({path.removeprefix('$').removeprefix('.')})" if path not in ("", "$") else ""
    return RequestError(f"{what}{where}.", param)
