"""One file per sharing system: its encodings, read and written exactly. Pure."""
