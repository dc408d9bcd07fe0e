"""Error answers in the shape that OpenAI clients read."""

from starlette.responses import Response

from ignisd.chat import codec
from ignisd.errors import IgnisError, Unavailable


class JsonResponse(Response):
    """A JSON answer."""

    media_type = "application/json"

    def render(self, content: object) -> bytes:
        """The bytes of the answer."""
        return codec.encode(content)


def error_object(error: IgnisError) -> dict[str, object]:
    """The body of an error answer, also sent as the last event of a stream that fails."""
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code,
        }
    }


def error_headers(error: IgnisError) -> dict[str, str]:
    """Whether, and when, to try again."""
    if isinstance(error, Unavailable) and error.retry:
        return {"retry-after": str(error.retry_after_s)}
    return {} if error.retry else {"x-should-retry": "false"}


def error_response(error: IgnisError) -> Response:
    """An error as an answer of its own."""
    return JsonResponse(error_object(error), error.status, error_headers(error))
