"""What the embedded stack says when it cannot do what was asked: what is in the way, and what to do."""


class DevstackError(Exception):
    """The root of the tree."""


class PortInUse(DevstackError):
    """A port that a server needs is taken; the message names the holder and the variable to set."""


class AlreadyRunning(DevstackError):
    """Another process uses the same folder; the message names it."""
