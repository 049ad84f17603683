"""What is counted, and under which names it is reported. Pure: plain integers, lists and dictionaries."""
