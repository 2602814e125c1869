"""The one exception that stands for bad input."""


class UserError(Exception):
    """Something outside the program is not as it must be: a file, a field, an option.

    The message is one sentence that names the thing, says what was expected and what to do.
    The command prints it without a traceback and exits with code 2.
    """
