"""The bill: money adds up, and what is measured is what was true."""
