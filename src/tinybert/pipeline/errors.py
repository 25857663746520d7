"""The error type for mistakes that the user can fix."""


class UserError(ValueError):
    """Something the user can fix: invalid params, invalid input, a missing file, no network.

    Its text is one line for each mistake: the key, file or column, what is wrong (with the value), what is allowed and
    how to fix it. A stage prints it and exits with 1; every other exception is a bug and keeps its traceback.
    A ValueError, so that pydantic turns it into a line of its own wherever a check runs inside the schema.
    """
