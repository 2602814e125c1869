"""The one exception that stands for bad input, and how a sentence names what it is about."""


class UserError(Exception):
    """Something outside the program is not as it must be: a file, a field, an option.

    The message is one sentence that names the thing, says what was expected and what to do.
    The command prints it without a traceback and exits with code 2.
    """


def reason(error: BaseException) -> str:
    """Why it failed, in one line: what the system says of an OSError, otherwise the first line of the message."""
    text = getattr(error, "strerror", None) or str(error)
    return (str(text).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def shown(text: object) -> str:
    """A text for a terminal or a log: control characters, and bytes of a name that are not UTF-8, as escapes.

    >>> shown("a\\x1b[31m.jpg")
    'a\\\\x1b[31m.jpg'
    """
    return "".join(each if each.isprintable() else _escape(each) for each in str(text))


def _escape(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that is not UTF-8, as Python keeps it in a file name
        return f"\\x{code - 0xDC00:02x}"
    return character.encode("unicode_escape").decode()
