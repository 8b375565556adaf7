"""Terms, facts and reasons as frozen values, and the arithmetic on them. No I/O; imports nothing of
ours.
"""
