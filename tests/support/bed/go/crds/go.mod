module vgpu.dev/testbed/crds

go 1.25.0

// Only its files are used, and no Go code: `go mod tidy` would drop it.
require github.com/prometheus-operator/prometheus-operator v0.89.0
