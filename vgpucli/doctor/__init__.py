"""What `vgpu doctor` checks: what is installed, and which settings, versions and rights are wrong.

The checks are pure: facts about a cluster or a node in, findings out. Texts of findings have names
of objects, versions and the values of known flags, and nothing else of what was read.
"""
