"""Builds the artefacts of a release: ``make release``, ``make image``.

- ``platforms``, ``source``, ``commands``: what everything below takes as arguments.
- ``debian``, ``debian_lock``: the locked Debian packages of the image, and how the lock is written.
- ``wheels``: the locked requirements and our own wheel as a folder of importable packages.
- ``layers``: tar files with equal bytes for equal content. ``image``, ``layered``, ``oci``: the
  container image. ``contents``: checks what is in it.
- ``wheel``, ``chart``, ``bundle``, ``deb``, ``krew``, ``sbom``, ``provenance``: other artefacts.
- ``artefacts``: the table of all artefacts. ``checks``: reasons to refuse a release. ``signing``:
  the hooks for keys.

Docs: docs/releasing.md.
"""
