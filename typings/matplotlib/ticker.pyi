from typing import Any

class FuncFormatter:
    def __init__(self, func: Any) -> None: ...

class MaxNLocator:
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...
