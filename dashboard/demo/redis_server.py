"""The server of one's own, under its former name."""

from queueops.local_redis import Binary, Kind, LocalServer, NoServer, find_binary, free_port, tied_to_parent

__all__ = ["Binary", "Kind", "LocalServer", "NoServer", "find_binary", "free_port", "tied_to_parent"]
