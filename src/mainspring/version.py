"""The version of this program: what agents and servers tell each other, and what `--version` prints."""

VERSION = "0.1.0"
