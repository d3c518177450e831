"""The native part of weirpool."""

from typing import Optional

__version__: str

def configure(name: str, value: Optional[str]) -> None:
    """Sets a setting in place of its environment variable, for pools that are created later."""

def statistics(device: int) -> dict[str, int]:
    """Returns the figures of a device's pool by their names."""

def stop_sharing() -> None:
    """Ends the sharing of memory with other processes. Called at the end of the process."""
