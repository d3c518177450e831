from typing import Optional, Union

__version__: str

def configure(
    *,
    capacity: Union[int, str, None] = None,
    remapping: Union[float, str, None] = None,
    sealing: Union[int, str, None] = None,
    timeout: Optional[float] = None,
) -> None: ...
def statistics(device: int = 0) -> dict[str, int]: ...
def library_path() -> str: ...
