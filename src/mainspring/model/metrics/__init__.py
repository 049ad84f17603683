"""What is counted, and under which names it is told. Pure: plain integers, lists and dictionaries."""
