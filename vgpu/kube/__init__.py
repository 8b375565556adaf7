"""The API server: pages and watches of pods, nodes and SharePods, and the product's few writes."""
