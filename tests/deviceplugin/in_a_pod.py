"""`vgpu` as in a pod, its service account in a folder: ``in_a_pod.py FOLDER device-plugin …``."""

import sys

from vgpu.cli import main
from vgpu.kube import service_account

service_account.ACCOUNT = sys.argv.pop(1)
main()
