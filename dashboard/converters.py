"""Path converters: what stands in an address must be what the engine allows, or the page does not exist."""


class _Text:
    regex = ""

    def to_python(self, value: str) -> str:
        return value

    def to_url(self, value: str) -> str:
        return str(value)


class QueueName(_Text):
    """A queue's name, as keys.check_queue allows it."""

    regex = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"


class JobId(_Text):
    """A job's id, as keys.check_job_id allows it."""

    regex = r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,127}"


class Word(_Text):
    """A cause, a verb or an operation's id."""

    regex = r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}"
