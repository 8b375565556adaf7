from kubernetes.client import Configuration

class ConfigException(Exception): ...  # noqa: N818  # its name

def load_kube_config(
    config_file: str | None = None,
    context: str | None = None,
    client_configuration: Configuration | None = None,
    persist_config: bool = True,
) -> None: ...
def load_incluster_config(client_configuration: Configuration | None = None) -> None: ...
