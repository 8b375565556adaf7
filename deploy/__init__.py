"""How it is installed: Helm chart, plain manifests rendered from it, image, systemd unit."""
