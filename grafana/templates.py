"""Templates that Prometheus fills in, in the texts of alerts: places and amounts."""

import re
from typing import Final

TEMPLATE: Final = re.compile(r"\{\{ \$labels\.(\w+) \}\}")
"""A label in a text, as Prometheus fills it in."""

THE_NODE: Final = "{{ $labels.instance }}"
THE_GPU: Final = "{{ $labels.uuid }} on {{ $labels.instance }}"
THE_CONTAINER: Final = "{{ $labels.namespace }}/{{ $labels.pod }}/{{ $labels.container }}"
THE_RESOURCE_CLAIM: Final = "{{ $labels.namespace }}/{{ $labels.resource_claim }}"
THE_RESOURCE: Final = "{{ $labels.resource }}"
RATIO: Final = "{{ $value | humanizePercentage }}"
TIME: Final = "{{ $value | humanizeDuration }}"
COUNT: Final = "{{ $value | humanize }}"
