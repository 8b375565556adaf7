import urllib3

class Configuration:
    host: str
    connection_pool_maxsize: int
    def __init__(self, host: str | None = None) -> None: ...
    def auth_settings(self) -> dict[str, dict[str, str]]: ...

class _RestClient:
    pool_manager: urllib3.PoolManager

class ApiClient:
    rest_client: _RestClient
    def __init__(self, configuration: Configuration) -> None: ...
