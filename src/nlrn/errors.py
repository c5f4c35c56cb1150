"""Errors of other libraries as part of a message of one line."""


def one_line(error: BaseException, limit: int = 200) -> str:
    """The error's message on one line of at most `limit` characters, or its class if empty."""
    return " ".join(str(error).split())[:limit] or type(error).__name__
