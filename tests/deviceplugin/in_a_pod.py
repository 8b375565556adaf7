"""`vgpu` as in a pod, its service account in a folder: ``in_a_pod.py FOLDER device-plugin …``."""

import sys

from vgpu.apiserver import access
from vgpucli.main import main

access.ACCOUNT = sys.argv.pop(1)
main()
