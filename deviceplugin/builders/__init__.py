"""How each scheme's adapter is made from the flags; `served` is the table of them."""
