"""The one error type that is meant for people."""


class UserError(Exception):
    """Something the user can mend: bad params, bad input, a missing file, no network.

    Its text is one line that names the key, file or column, the value found, what is allowed and
    the fix. A stage script prints that line and exits with 1; every other exception is our bug and
    keeps its traceback.
    """
