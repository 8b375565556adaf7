"""Rules and dashboards for the metrics, as tables from which files are generated.

Prometheus loads ``rules/``, Grafana imports ``dashboards/*.json``; ``generate.py`` writes both.
Rules depend only on the names of scrape jobs in ``settings.py``: they keep every label that
distinguishes clusters, and work with ``honor_labels: true`` as well as with ``exported_…`` labels
(``promql.named``).
"""
