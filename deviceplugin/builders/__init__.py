"""How each scheme's adapter is made from the flags; `registry` is the table of them."""
