"""KubeShare and its Gemini daemon."""
