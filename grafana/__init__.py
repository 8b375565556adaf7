"""What stands on top of the metrics: rules and dashboards, as tables that files are made from.

What Prometheus loads is in ``rules/``, what Grafana imports in ``dashboards/*.json``;
``generate.py`` writes both. Rules ask nothing of the scrape jobs but the names in ``settings.py``:
they keep every label that distinguishes clusters, and work with ``honor_labels: true`` as well as
with ``exported_…`` labels (``promql.named``).
"""
