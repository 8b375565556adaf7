{{/* What to do where no image is named: the one error of a chart that is not of a release. */}}
{{- define "vgpu.noImage" -}}
image.repository is empty: the chart of the source names no image, since none is published. Use the chart of a release, or:
  1. Build an image from the source: `make image` writes an archive into dist/, and prints the image's name.
  2. Load the archive, without a registry, on each node: `ctr --namespace k8s.io images import ARCHIVE`
     (in a lab: `kind load image-archive ARCHIVE`, `k3s ctr images import ARCHIVE`, `minikube image load ARCHIVE`),
     or push it: `skopeo copy --all oci-archive:ARCHIVE:{{ .Chart.AppVersion }} docker://REGISTRY/vgpu:{{ .Chart.AppVersion }}`.
  3. Set image.repository to the image's name without its tag; image.tag or image.digest where these are not the chart's.
{{- end }}
