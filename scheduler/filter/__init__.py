"""The verb filter: which nodes take a pod, why others do not, and what is remembered; pure."""
