"""`vgpu fleet`: a page about all shared GPUs of a cluster, read-only.

========= =====================================================================
objects   what is read: from the API server, or from dumps of it
measured  what pods use on each GPU, by exporters or a Prometheus
history   what they used before, by a Prometheus
snapshot  the answers of the commands to these objects, all of one moment
nvidia    nodes and units of NVIDIA's own device plugin
repairs   what the reconciler did lately
rights    with which the API server is read
keeper    reads again and again, and keeps the newest snapshot
problems  what needs action, of all answers, worst first
waiting   the pods that do not run, grouped by owner and request
overview  the first view
pages     the table of pages: path, view, template
language  the texts in English and Chinese
render    templates, numbers with their owners, links
door      who may look: this machine's user with the key that was printed
========= =====================================================================
"""

DISTRIBUTION = "vgpu"
