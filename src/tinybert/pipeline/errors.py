"""The error type for mistakes that the user can fix, and checks that find all of them."""

from collections.abc import Callable, Iterable
from typing import Any

Check = Callable[[], Any]


class UserError(ValueError):
    """Something the user can fix: invalid params, invalid input, a missing file, no network.

    Its text is one line for each mistake: the key, file or column, what is wrong (with the value), what is allowed and
    how to fix it. A stage prints it and exits with 1; every other exception is a bug and keeps its traceback.
    A ValueError, so that pydantic turns it into a line of its own wherever a check runs inside the schema.
    """


def check_all(checks: Iterable[Check]) -> list[Any]:
    """Calls all checks and returns their results; one UserError with the lines of all that fail, each once."""
    mistakes, results = list[str](), []
    for check in checks:
        try:
            results.append(check())
        except UserError as error:
            mistakes += str(error).splitlines()
    if mistakes:
        raise UserError("\n".join(dict.fromkeys(mistakes)))
    return results
