"""Volcano vGPU and HAMi, with HAMi-core's region files."""
