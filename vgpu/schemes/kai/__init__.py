"""KAI Scheduler: parts of GPUs, by annotations of pods and pods that reserve whole GPUs."""
