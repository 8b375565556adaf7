# The part of matplotlib that grafana/preview.py uses; `make check` does not install matplotlib.
